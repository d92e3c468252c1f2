/** The tests inside share a node with two servers, and the mode as the daemon makes it. */
import { once } from 'node:events'
import { createConnection, createServer, type Socket } from 'node:net'
import t from 'tap'
import { mode } from '../../../lib/modes/ipvs/index.js'
import type { Mode, ModeContext } from '../../../lib/modes/mode.js'
import { configWith } from '../../../lib/config/load.js'
import { execSync } from '../../support/run-sync.js'
import { service } from '../../support/states.js'

/** Without a fork, as also the mode starts its programs: in this kernel a fork costs most of all. */
export const sh = (command: string) => execSync('sh', ['-c', command])
export const table = () => sh('ipvsadm -Sn').trim().split('\n').filter(Boolean)

/** Whether the kernel has a scheduler. Some lack a few of them, most often `twos`. */
export function hasScheduler(name: string): boolean {
  try {
    sh(`modprobe ip_vs_${name}`)
    return true
  } catch {
    return false
  }
}

export const warnings: object[] = []
export const resyncs: string[] = []
export const nothing = () => undefined
export const context: ModeContext = {
  log: {
    debug: nothing,
    info: nothing,
    warn: (fields) => void warnings.push(fields),
    error: nothing,
  },
  meter: { count: nothing, gauge: nothing, observe: nothing, forget: nothing },
  resync: (reason) => void resyncs.push(reason),
}

/** Creates the mode as the daemon does. A second one plays the mode after a restart. */
export const create = (values: Readonly<Record<string, unknown>> = {}): Promise<Mode> =>
  mode.create(configWith(values), ['IPv4', 'IPv6'], context)

export const web = service({
  nodePort: 30080,
  loadBalancerIps: ['203.0.113.2'],
  sourceRanges: ['198.51.100.0/24'],
  endpoints: ['10.180.0.1', '10.180.0.2'],
})

/** A server that sends its address to each client and keeps the connection. */
async function listen(ip: string): Promise<void> {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', nothing)
    socket.on('data', () => socket.write(ip))
  })
  server.listen(8080, ip)
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    // The connections end first: without the virtual server the client does not hear of their end.
    for (const socket of sockets) socket.destroy()
  })
}

export async function ask(socket: Socket): Promise<string> {
  socket.write('?')
  const [answer] = (await once(socket, 'data', { signal: AbortSignal.timeout(600_000) })) as [
    Buffer,
  ]
  return answer.toString()
}

export async function connect(): Promise<Socket> {
  const socket = createConnection(80, '10.96.0.10')
  socket.on('error', nothing)
  await once(socket, 'connect')
  return socket
}

sh('ip address replace 192.0.2.1/32 dev lo')
for (const last of [1, 2]) {
  sh(`ip address replace 10.180.0.${last}/32 dev lo`)
  await listen(`10.180.0.${last}`)
}
