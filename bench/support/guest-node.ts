import { existsSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { writeKubeconfig } from '../../lib/lab/apiserver/kubeconfig.js'
import { openBridge } from '../../lib/lab/world/bridge.js'
import type { World } from '../../lib/lab/world/world.js'
import { addressOf, bridgeName } from '../../lib/lab/world/topology.js'
import { quoted } from '../../test/support/guest.js'
import { netnsSkip } from '../../test/support/netns.js'
import { program } from '../../test/support/program.js'
import { runInUml } from '../../test/support/uml.js'
import { answers, apiPort, inCluster, proxyArguments } from './bench-cluster.js'
import { busy, type BusyCosts } from './busy-cluster.js'

const device = 'guest0'
const outer = '192.168.77.1'

/** Why no node can be a guest, besides what User Mode Linux lacks; or false. */
export const guestSkip: string | false =
  netnsSkip || (existsSync('/dev/net/tun') ? false : 'there is no /dev/net/tun')

interface GuestFiles {
  readonly kubeconfig: string
  /** The guest ends when it is there. */
  readonly stop: string
}

interface GuestTask {
  readonly services: number
  readonly seconds: number
  /** Before that. The first changes meet a program that V8 has not compiled yet. */
  readonly warmSeconds: number
}

/**
 * Runs the program in ipvs mode on a node that is a User Mode Linux, and keeps 20 slices a second
 * changing. API server, clients and pods are outside, so the slow system calls of the guest are
 * those of the node alone. A text says why it failed.
 */
export function busyGuest(task: GuestTask): Promise<BusyCosts | string> {
  const { services, seconds, warmSeconds } = task
  return inCluster(services, async (cluster) => {
    const { world } = cluster
    const { node: namespace } = world.namespaces
    const folder = dirname(cluster.kubeconfig)
    const files = { kubeconfig: join(folder, 'guest.kubeconfig'), stop: join(folder, 'stop') }
    await writeKubeconfig(files.kubeconfig, { url: `http://localhost:${apiPort}` })
    await makeSwitch(world)
    const [from, to] = [{ host: outer, port: apiPort }, { port: apiPort }]
    const bridge = await openBridge({ namespace, from, to })
    const said: string[] = []
    let isAlive = true
    const limitSeconds = warmSeconds + seconds + 900
    const guest = runInUml(insideOf(files, limitSeconds), {
      memory: '2G',
      timeoutMs: limitSeconds * 1000,
      network: { namespace, device },
      onLine: (line) => said.push(line),
    })
      .catch((error: unknown) => said.push(String(error)))
      .finally(() => (isAlive = false))
    try {
      const running = { pid: process.pid, isAlive: () => isAlive }
      const changes = { services, perSecond: 20, restMs: 200 }
      const phase = (length: number) => busy(cluster, running, { ...changes, seconds: length })
      let result = (await answers(world, 'pod-1', running.isAlive))
        ? await phase(warmSeconds)
        : 'no answer'
      if (typeof result !== 'string') result = await phase(seconds)
      return typeof result === 'string' ? `${result}; it said: ${said.slice(-5).join(' ')}` : result
    } finally {
      writeFileSync(files.stop, '')
      await guest
      await bridge.close()
    }
  })
}

/** The namespace of the node is only a switch then; the guest has the address of the gateway. */
async function makeSwitch(world: World): Promise<void> {
  for (const words of [
    `address flush dev ${bridgeName}`,
    `address add ${outer}/24 dev ${bridgeName}`,
    `tuntap add ${device} mode tap`,
    `link set ${device} master ${bridgeName} up`,
  ]) {
    const { code, stderr } = await world.exec('node', ['ip', ...words.split(' ')])
    if (code !== 0) throw new Error(`ip ${words}: ${stderr.trim()}`)
  }
}

/**
 * The commands of the guest. Its only name for the API server is one that the server takes. It ends
 * by itself where nobody is left to stop it.
 */
function insideOf({ kubeconfig, stop }: GuestFiles, limitSeconds: number): string {
  const proxy = [process.execPath, program, ...proxyArguments(kubeconfig, 'ipvs')]
  return `
    echo '${outer} localhost' >/run/hosts && mount --bind /run/hosts /etc/hosts
    ip link set vec0 up
    ip address add ${addressOf('node', 'IPv4', 2)}/24 dev vec0
    ip address add ${addressOf('node', 'IPv4')}/32 dev vec0
    ip address add 192.168.77.2/24 dev vec0
    sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0
    sysctl -qw net.ipv4.conf.vec0.send_redirects=0
    ${proxy.map(quoted).join(' ')} &
    for second in $(seq ${limitSeconds}); do [ -e ${quoted(stop)} ] && break; sleep 1; done`
}
