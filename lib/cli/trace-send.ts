import { createSocket } from 'node:dgram'
import { connect } from 'node:net'
import { ConfigError, KernelError, messageOf } from '../errors.js'
import type { TraceTarget } from '../inspect/trace/trace-rule.js'
import { hostPort } from '../state/ip.js'
import { settleMs } from './trace-collector.js'

/** Makes connections from this node. Returns why a packet could not leave this node. */
export async function send(target: TraceTarget, count: number): Promise<Error | undefined> {
  const { ip, port, protocol } = target
  if (protocol === 'SCTP')
    return new ConfigError('--send: it makes only TCP and UDP connections; use a client for SCTP')
  for (let sent = 0; sent < count; sent++) {
    const failure = protocol === 'UDP' ? await sendDatagram(target) : await connectTo(target)
    // A failure may also be an answer, such as that of a rule that rejects.
    const noRoute = failure && (await routeError(target))
    if (noRoute) {
      const advice = `this node has no route to it; see \`ip route get ${ip}\``
      const action = `send to ${hostPort(ip, port)}: ${messageOf(noRoute)}`
      return new KernelError('failed', `${action}; ${advice}`, { cause: noRoute })
    }
  }
  return undefined
}

function connectTo({ ip, port }: TraceTarget): Promise<Error | undefined> {
  const socket = connect({ host: ip, port, timeout: settleMs })
  let failure: Error | undefined
  socket.once('error', (error) => (failure = error))
  for (const event of ['connect', 'timeout']) socket.once(event, () => socket.destroy())
  return new Promise((resolve) => socket.once('close', () => resolve(failure)))
}

async function sendDatagram({ family, ip, port }: TraceTarget): Promise<Error | undefined> {
  const socket = createSocket(datagrams[family])
  const failure = await new Promise<Error | null>((done) => socket.send('', port, ip, done))
  socket.close()
  return failure ?? undefined
}

/** A datagram socket finds its route without a packet. */
async function routeError({ family, ip, port }: TraceTarget): Promise<Error | undefined> {
  const socket = createSocket(datagrams[family])
  const failure = await new Promise<Error | undefined>((done) => {
    socket.connect(port, ip, (error?: Error) => done(error))
  })
  socket.close()
  return failure
}

const datagrams = { IPv4: 'udp4', IPv6: 'udp6' } as const
