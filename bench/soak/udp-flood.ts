/**
 * One datagram from each of 100,000 source addresses and ports, through both data paths: what the
 * table of UDP clients costs in memory and descriptors. Usage: udp-flood.js [net|splice]
 */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { runCommand } from '../../lib/kernel/command.js'
import { lane, nodeAddresses, serverAddress, startIn, stop, withLane } from '../support/lane.js'
import { openDescriptors, residentMib } from '../support/process-usage.js'
import { ports } from '../support/services.js'

const addresses = ['10.81.1.20', '10.81.1.21']
const firstPort = 10_000
const portsEach = 50_000
const sources = addresses.length * portsEach
const atOnce = 200
const self = new URL(import.meta.url).pathname

/** Runs in the clients' namespace: one datagram from every address and port. */
async function flood(to: string): Promise<void> {
  for (const address of addresses) {
    for (let start = firstPort; start < firstPort + portsEach; start += atOnce) {
      const sockets = await Promise.all(
        Array.from({ length: atOnce }, async (_, index) => {
          const socket = createSocket('udp4')
          socket.bind(start + index, address)
          await once(socket, 'listening')
          await new Promise((resolve) => socket.send('x', ports.udp, to, resolve))
          return socket
        }),
      )
      for (const socket of sockets) socket.close()
    }
  }
  process.stdout.write('sent\n')
}

async function measure(dataPath: 'net' | 'splice'): Promise<void> {
  await withLane(async () => {
    const script = (name: string) => new URL(`../support/${name}.js`, import.meta.url).pathname
    const node = process.execPath
    for (const address of addresses) {
      const argv = ['-n', lane.clients, 'address', 'add', `${address}/24`, 'dev', 'c0']
      await runCommand('ip', argv)
    }
    const server = await startIn(lane.servers, [node, script('load-server'), serverAddress])
    const proxyArgs = [dataPath, '2', nodeAddresses.splice, serverAddress]
    const proxy = await startIn(lane.node, [node, script('proxy-under-test'), ...proxyArgs])
    const pid = proxy.pid ?? 0
    try {
      await sleep(1000)
      const [mib, descriptors] = [residentMib(pid), openDescriptors(pid)]
      let mostMib = mib
      let mostDescriptors = descriptors
      const watching = setInterval(() => {
        mostMib = Math.max(mostMib, residentMib(pid))
        mostDescriptors = Math.max(mostDescriptors, openDescriptors(pid))
      }, 200)
      const flooding = await startIn(lane.clients, [node, self, 'flood', nodeAddresses.splice])
      if (flooding.exitCode === null) await once(flooding, 'exit')
      clearInterval(watching)
      await sleep(12_000)
      console.log(
        `${dataPath}: ${sources} sources; at most ${(mostMib - mib).toFixed(0)} MiB and ` +
          `${mostDescriptors - descriptors} descriptors more; 12 s later ` +
          `${(residentMib(pid) - mib).toFixed(0)} MiB and ${openDescriptors(pid) - descriptors} descriptors more`,
      )
    } finally {
      await stop(proxy)
      await stop(server)
    }
  })
}

const [what = '', address = ''] = process.argv.slice(2)
if (what === 'flood') await flood(address)
else
  for (const dataPath of ['net', 'splice'] as const) {
    if (what === '' || what === dataPath) await measure(dataPath)
  }
