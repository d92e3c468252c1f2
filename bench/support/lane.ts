import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { runCommand } from '../../lib/kernel/command.js'

/** Three namespaces in a row: clients, the proxy's node, servers. */
export const lane = {
  clients: 'kpbench-c',
  node: 'kpbench-p',
  servers: 'kpbench-s',
} as const

export const serverAddress = '10.81.2.2'
/** One address of the node for each proxy, so that all of them can be up at once. */
export const nodeAddresses = {
  splice: '10.81.1.1',
  net: '10.81.1.3',
  haproxy: '10.81.1.4',
  /** Splice as well, beside 1,000 other Services. */
  crowded: '10.81.1.5',
} as const

async function ip(...args: string[]): Promise<void> {
  const { code, stderr } = await runCommand('ip', args)
  if (code !== 0) throw new Error(`ip ${args.join(' ')}: ${stderr}`)
}

/** Builds the lane, calls `use`, and takes everything down again. */
export async function withLane(use: () => Promise<void>): Promise<void> {
  try {
    for (const name of Object.values(lane)) {
      await ip('netns', 'add', name)
      await ip('-n', name, 'link', 'set', 'lo', 'up')
    }
    await connect('c0', lane.clients, '10.81.1.2/24', 'p0', '10.81.1.1/24')
    await connect('s0', lane.servers, `${serverAddress}/24`, 'p1', '10.81.2.1/24')
    for (const address of Object.values(nodeAddresses)) {
      if (address === nodeAddresses.splice) continue
      await ip('-n', lane.node, 'address', 'add', `${address}/24`, 'dev', 'p0')
    }
    await ip('-n', lane.clients, 'route', 'add', 'default', 'via', '10.81.1.1')
    await ip('-n', lane.servers, 'route', 'add', 'default', 'via', '10.81.2.1')
    for (const name of Object.values(lane)) {
      await sysctl(name, 'net.ipv4.ip_forward', '1')
      await sysctl(name, 'net.ipv4.ip_local_port_range', '10000 65000')
    }
    await controlCongestion(usualControl)
    await use()
  } finally {
    for (const name of Object.values(lane)) await runCommand('ip', ['netns', 'delete', name])
  }
}

/**
 * Like cubic, the default of Linux, reno sends what the window allows. A namespace may use cubic
 * only if the machine allows it. With reno the default of the machine does not matter.
 */
export const usualControl = 'reno'

/** Sets the pace of connections that are opened later. Throws if the machine does not allow it. */
export async function controlCongestion(algorithm: string): Promise<void> {
  for (const name of Object.values(lane)) {
    await sysctl(name, 'net.ipv4.tcp_congestion_control', algorithm)
  }
}

async function connect(a: string, at: string, aAddress: string, b: string, bAddress: string) {
  const to = { name: b, netns: lane.node }
  await ip('-n', at, 'link', 'add', a, 'type', 'veth', 'peer', 'name', to.name, 'netns', to.netns)
  await ip('-n', at, 'address', 'add', aAddress, 'dev', a)
  await ip('-n', to.netns, 'address', 'add', bAddress, 'dev', b)
  await ip('-n', at, 'link', 'set', a, 'up')
  await ip('-n', to.netns, 'link', 'set', b, 'up')
}

async function sysctl(name: string, key: string, value: string): Promise<void> {
  const argv = ['netns', 'exec', name, 'sysctl', '-qw', `${key}=${value}`]
  const { code, stderr } = await runCommand('ip', argv)
  if (code !== 0) throw new Error(`${key}=${value} in ${name}: ${stderr.trim()}`)
}

/** Starts a program in a namespace; resolves once it has printed a line, if it ever does. */
export async function startIn(
  name: string,
  argv: readonly string[],
  saysWhenReady = true,
): Promise<ChildProcess> {
  const child = spawn('ip', ['netns', 'exec', name, ...argv], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  if (saysWhenReady) {
    await Promise.race([
      once(child.stdout, 'data'),
      once(child, 'exit').then(() => {
        throw new Error(`${argv.join(' ')} ended before it was ready`)
      }),
    ])
  }
  return child
}

export async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const ended = once(child, 'exit')
  child.kill('SIGKILL')
  await ended
}

/** Runs one load to its end and returns what it reports. */
export async function runLoad(args: readonly (string | number)[]): Promise<Record<string, number>> {
  const script = new URL('./load-client.js', import.meta.url).pathname
  const argv = ['netns', 'exec', lane.clients, process.execPath, script, ...args.map(String)]
  const { stdout, stderr, code } = await runCommand('ip', argv)
  if (code !== 0) throw new Error(`load ${args.join(' ')}: ${stderr}`)
  return JSON.parse(stdout) as Record<string, number>
}
