import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { isIP, Socket } from 'node:net'
import { getSystemErrorName } from 'node:util'
import { messageOf } from '../../errors.js'
import { isLinux } from '../../platform.js'
import {
  probeWord,
  type BackendReply,
  type FlowOutcome,
  type FlowRequest,
  type FlowResult,
} from './agent-protocol.js'
import { NativeSocket, checksum, openSctpSocket } from './native-socket.js'

/** One open connection or UDP socket to a destination. */
export interface Conversation {
  /** Sends one request and waits for its reply. */
  ask(options: AskOptions): Promise<FlowResult>
  close(): void
}

interface AskOptions {
  readonly timeoutMs: number
  readonly payloadBytes?: number | undefined
  readonly halfClose?: boolean | undefined
}

/** Opens a socket in the namespace of the client. */
export type OpenThere = <T>(open: () => T | Promise<T>) => Promise<T>

export async function openConversation(
  request: FlowRequest,
  there: OpenThere,
): Promise<Conversation> {
  if (request.protocol === 'ICMP') return pingConversation(request, there)
  if (request.protocol === 'UDP') return udpConversation(request, there)
  return there(() => streamConversation(request))
}

type Answer = Omit<FlowResult, 'latencyMs'>

/** A question asked and not yet answered. */
interface Question {
  readonly answered: Promise<FlowResult>
  /** Only the first call has an effect. */
  readonly settle: (answer: Answer) => void
}

/**
 * A wait consists of many short ones, and answers are read between them. If this thread gets no
 * processor time, only one short wait passes, so an answer is not missed on a slow machine.
 */
const waitParts = 20

function ask(timeoutMs: number): Question {
  const started = performance.now()
  let resolve: (result: FlowResult) => void = () => undefined
  const answered = new Promise<FlowResult>((done) => (resolve = done))
  const settle = (answer: Answer) => {
    clearTimeout(timer)
    resolve({ ...answer, latencyMs: performance.now() - started })
  }
  let timer: NodeJS.Timeout | undefined
  const wait = (left: number) => {
    if (left > 0) timer = setTimeout(() => wait(left - 1), timeoutMs / waitParts)
    else settle({ outcome: 'dropped', error: `no answer within ${timeoutMs} ms` })
  }
  wait(waitParts)
  return { answered, settle }
}

function streamConversation(request: FlowRequest): Conversation {
  const native = nativeSocketFor(request)
  const socket = streamOver(native)
  let asked: Question | undefined
  let connected = false
  let failure: Answer | undefined
  let pending = ''
  const fail = (result: Answer) => {
    failure ??= result
    asked?.settle(failure)
  }
  socket.on('connect', () => (connected = true))
  socket.on('data', (chunk: string) => {
    pending += chunk
    const end = pending.indexOf('\n')
    if (end < 0) return
    asked?.settle(replyOf(pending.slice(0, end)))
    pending = pending.slice(end + 1)
  })
  socket.on('end', () => {
    fail({ outcome: 'closed', error: 'end of stream' })
    socket.destroy()
  })
  socket.on('error', (error: NodeJS.ErrnoException) => {
    fail({ outcome: connected ? 'closed' : outcomeOf(error.code), error: error.message })
  })
  socket.on('close', () => fail({ outcome: 'closed', error: 'closed' }))
  const withPort = connect(socket, request)
  // If the answer comes before connect(2) has returned, Linux stores the error and tries again a
  // second later (IPv6). The stored error can be read at once.
  setImmediate(() => {
    if (socket.destroyed || connected) return
    const number = native?.takeError() ?? 0
    if (number === 0) return
    const code = getSystemErrorName(-number)
    fail({ outcome: outcomeOf(code), error: `connect ${code}` })
    socket.destroy()
  })
  return {
    ask: ({ timeoutMs, payloadBytes, halfClose }) => {
      asked = ask(timeoutMs)
      if (failure) asked.settle(failure)
      else if (halfClose === true)
        socket.end(`${requestText({ ...request, halfClose }, payloadBytes)}\n`)
      else socket.write(`${requestText(request, payloadBytes)}\n`)
      return asked.answered.then(withPort)
    },
    close: () => socket.destroy(),
  }
}

/** Returns what adds the port of this side to a result without a reply, also after the socket has failed. */
function connect(socket: Socket, request: FlowRequest): (result: FlowResult) => FlowResult {
  let clientPort: number | undefined
  socket.connect(targetOf(request))
  // Node itself connects at the next tick.
  process.nextTick(() => (clientPort = socket.localPort))
  return (result) =>
    result.outcome === 'reply' || clientPort === undefined ? result : { ...result, clientPort }
}

function streamOver(native: NativeSocket | undefined): Socket {
  const over = native ? { fd: native.descriptor, readable: true, writable: true } : {}
  const socket = new Socket({ allowHalfOpen: true, ...over })
  socket.setNoDelay(true)
  return socket.setEncoding('utf8')
}

/** Sockets of other protocols than TCP are bound already. */
function targetOf({ host, port, protocol, from, fromPort = 0 }: FlowRequest) {
  if (protocol !== 'TCP') return { host, port }
  return { host, port, localPort: fromPort, ...(from === undefined ? {} : { localAddress: from }) }
}

/** The descriptor of a stream that Node connects and reads; undefined where Node makes its own. */
function nativeSocketFor(request: FlowRequest): NativeSocket | undefined {
  if (isIP(request.host) === 0 || !isLinux()) return undefined
  if (request.protocol !== 'SCTP') return new NativeSocket(request.host, 'stream', 'tcp')
  const socket = openSctpSocket(request.host)
  if (request.from !== undefined) socket.bind(request.from, request.fromPort ?? 0)
  return socket
}

/** The errors that the owner of a socket gets when somebody else ends it. */
const endedCodes: ReadonlySet<string> = new Set(['ECONNABORTED', 'EDESTADDRREQ'])
const mostReopened = 3

function udpConversation(request: FlowRequest, there: OpenThere): Conversation {
  let opened: Promise<UdpSocket> | undefined
  let asked: Question | undefined
  let payload: number | undefined
  let reopened = 0
  const drop = () => {
    opened?.then(
      (socket) => socket.close(),
      () => undefined,
    )
    opened = undefined
  }
  const hear = (text: string) => asked?.settle(replyOf(text))
  const fail = (error: NodeJS.ErrnoException) => {
    const isEnded = endedCodes.has(error.code ?? '')
    // A client opens another socket when somebody else has ended its socket.
    if (isEnded) drop()
    if (isEnded && asked && reopened++ < mostReopened) void send()
    else asked?.settle({ outcome: outcomeOf(error.code), error: error.message })
  }
  const send = async () => {
    try {
      opened ??= there(() => openUdp(request, hear, fail))
      const socket = await opened
      const text = requestText(request, payload)
      socket.send(text, (error) => {
        if (error) fail(error)
      })
    } catch (error) {
      opened = undefined
      fail(error as NodeJS.ErrnoException)
    }
  }
  return {
    ask: ({ timeoutMs, payloadBytes }) => {
      asked = ask(timeoutMs)
      payload = payloadBytes
      reopened = 0
      void send()
      const { repeatMs } = request
      const again = repeatMs === undefined ? undefined : setInterval(() => void send(), repeatMs)
      return asked.answered.finally(() => {
        clearInterval(again)
        asked = undefined
      })
    },
    close: drop,
  }
}

/** Only a connected socket gets ICMP errors, which distinguish refused from dropped. */
async function openUdp(
  { host, port, from, fromPort = 0 }: FlowRequest,
  hear: (text: string) => void,
  fail: (error: NodeJS.ErrnoException) => void,
): Promise<UdpSocket> {
  const isIpv6 = host.includes(':')
  const socket = createSocket(isIpv6 ? 'udp6' : 'udp4')
  const address = from ?? (isIpv6 ? '::' : '0.0.0.0')
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('error', reject)
      socket.bind({ port: fromPort, address }, () => {
        // connect(2) itself may be refused, as in ebpf mode without endpoints.
        socket.connect(port, host, (error?: Error) => (error ? reject(error) : resolve()))
      })
    })
  } catch (error) {
    socket.close()
    throw error
  }
  socket.removeAllListeners('error').on('error', fail)
  return socket.on('message', (message) => hear(message.toString('utf8')))
}

/** An echo does not name the backend that answered. */
function pingConversation({ host }: FlowRequest, there: OpenThere): Conversation {
  return {
    ask: async ({ timeoutMs }) => {
      const { answered, settle } = ask(timeoutMs)
      try {
        const isAnswered = await ping(host, timeoutMs, there)
        settle(isAnswered ? { outcome: 'reply' } : { outcome: 'dropped', error: 'no echo' })
      } catch (error) {
        settle({ outcome: 'unreachable', error: messageOf(error) })
      }
      return answered
    },
    close: () => undefined,
  }
}

const echoRequest = { IPv4: 8, IPv6: 128 } as const
const echoReply = { IPv4: 0, IPv6: 129 } as const

/** Sends one ICMP echo request; true once its answer comes, false when the time is over. */
async function ping(host: string, timeoutMs: number, there: OpenThere): Promise<boolean> {
  const socket = await there(() => new NativeSocket(host, 'raw', 'icmp'))
  try {
    const id = Math.floor(Math.random() * 0x1_0000)
    const request = Buffer.alloc(16)
    request.writeUInt8(echoRequest[socket.family], 0)
    request.writeUInt16BE(id, 4)
    // The kernel fills in the checksum for IPv6, which depends on the addresses.
    if (socket.family === 'IPv4') request.writeUInt16BE(checksum(request), 2)
    socket.send(request, host)
    // All ICMP of the namespace arrives at a raw socket, own requests to itself included.
    const isAnswer = (got: Buffer) =>
      got.length >= 8 && got.readUInt8(0) === echoReply[socket.family] && got.readUInt16BE(4) === id
    return (await socket.first(timeoutMs, (got) => isAnswer(got) || undefined)) === true
  } finally {
    socket.close()
  }
}

function requestText(
  { halfClose, isProbe }: Pick<FlowRequest, 'isProbe'> & Pick<AskOptions, 'halfClose'>,
  payloadBytes = 0,
): string {
  const word = halfClose === true ? 'end' : isProbe === true ? probeWord : 'ask'
  return word.padEnd(payloadBytes, 'x')
}

function outcomeOf(code: string | undefined): FlowOutcome {
  if (code === 'ECONNREFUSED' || code === 'ECONNRESET') return 'refused'
  return code === 'ETIMEDOUT' ? 'dropped' : 'unreachable'
}

function replyOf(text: string): Answer {
  const reply = JSON.parse(text) as BackendReply
  const { backend, source, port, announced } = reply
  const told = announced === undefined ? {} : { announced }
  return { outcome: 'reply', backend, source, sourcePort: port, ...told }
}
