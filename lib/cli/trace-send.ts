import { createSocket } from 'node:dgram'
import { connect } from 'node:net'
import { ConfigError, KernelError, messageOf } from '../errors.js'
import type { TraceTarget } from '../inspect/trace/trace-rule.js'
import { hostPort } from '../state/ip.js'
import { counted } from '../state/names.js'

/** How long a connection may take: the kernel sends its first packet again after a second. */
const answerMs = 900

export interface Sent {
  /** Why a packet could not leave this node; undefined if all could. */
  readonly failure?: Error
  /** What became of each connection, in words. */
  readonly outcomes: readonly string[]
}

/** Makes connections from this node, one after the other, until the signal. */
export async function send(target: TraceTarget, count: number, stop: AbortSignal): Promise<Sent> {
  const { ip, port, protocol } = target
  const outcomes: string[] = []
  if (protocol === 'SCTP') {
    const reason = '--send: it makes only TCP and UDP connections; use a client for SCTP'
    return { failure: new ConfigError(reason), outcomes }
  }
  for (let sent = 0; sent < count && !stop.aborted; sent++) {
    const failure = protocol === 'UDP' ? await sendDatagram(target) : await connectTo(target)
    // A failure may also be an answer, such as that of a rule that rejects.
    const noRoute = failure && (await routeError(target))
    if (noRoute) {
      const advice = `this node has no route to it; see \`ip route get ${ip}\``
      const action = `send to ${hostPort(ip, port)}: ${messageOf(noRoute)}`
      const why = new KernelError('failed', `${action}; ${advice}`, { cause: noRoute })
      return { failure: why, outcomes }
    }
    if (protocol === 'TCP') outcomes.push(outcomeText(failure))
  }
  return { outcomes }
}

/** What became of the connections that were made, in the order in which it was first seen. */
export function outcomeLines(outcomes: readonly string[]): readonly string[] {
  const kinds = [...new Set(outcomes)]
  return kinds.map((kind) => {
    const count = outcomes.filter((each) => each === kind).length
    return `${counted(count, 'connection')} of --send: ${kind}`
  })
}

function outcomeText(failure: Error | undefined): string {
  if (!failure) return 'accepted'
  const isRefused = 'code' in failure && failure.code === 'ECONNREFUSED'
  return isRefused
    ? 'refused (ECONNREFUSED); if the way ends at an endpoint, mostly nothing listens on that port there'
    : messageOf(failure)
}

function connectTo({ ip, port }: TraceTarget): Promise<Error | undefined> {
  const socket = connect({ host: ip, port, timeout: answerMs })
  let failure: Error | undefined
  socket.once('error', (error) => (failure = error))
  socket.once('connect', () => socket.destroy())
  socket.once('timeout', () => {
    failure = new Error(`no answer came within ${answerMs / 1000} s`)
    socket.destroy()
  })
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
