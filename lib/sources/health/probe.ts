import { connect } from 'node:net'
import { afterReading } from '../../async.js'
import { hostPort } from '../../state/ip.js'
import { messageOf } from '../../errors.js'
import { reset } from '../../kernel/sockets/reset.js'
import { askGrpcHealth } from './grpc-answer.js'
import {
  closedTooSoon,
  good,
  late,
  refusal,
  type Conversation,
  type Outcome,
  httpAnswer,
  httpRequest,
  longestStatusLine,
} from './outcome.js'
import type { CheckTarget } from './messages.js'

/**
 * The time of a check consists of so many waits. If this thread is held up, only one of them passes.
 * What came meanwhile needs several turns: to connect, to ask, and to read the answer.
 */
const waits = 4

/** Checks an endpoint once. Never rejects, and never takes much longer than the time-out. */
export function probe({ ip, port, check }: CheckTarget): Promise<Outcome> {
  const at = check.port ?? port
  return new Promise((resolve) => {
    const socket = connect({ host: ip, port: at, noDelay: true })
    let cancelWait: (() => void) | undefined
    let isConnected = false
    const tell = (outcome: Outcome) => {
      cancelWait?.()
      // A reset leaves nothing behind, and stops an endpoint that would send for ever. Node would
      // delay the reset of a socket that still connects.
      if (isConnected && check.kind !== 'grpc') reset(socket)
      else socket.destroy()
      resolve(outcome)
    }
    const wait = (left: number) => {
      cancelWait = afterReading(check.timeoutMs / waits, () => {
        if (left > 1) wait(left - 1)
        else tell(late(check, isConnected))
      })
    }
    wait(waits)
    // Errors after the end do not matter, but they need a listener.
    socket.on('error', (error: NodeJS.ErrnoException) =>
      tell(refusal(error.code ?? messageOf(error))),
    )
    socket.once('close', () => tell(closedTooSoon))
    socket.once('connect', () => {
      isConnected = true
      conversations[check.kind](check.path, hostPort(ip, at))(socket, tell)
    })
  })
}

const conversations: Readonly<
  Record<CheckTarget['check']['kind'], (path: string, host: string) => Conversation>
> = {
  tcp: () => (_socket, told) => told(good),
  http: (path, host) => (socket, told) => {
    let head = ''
    socket.on('data', (bytes: Buffer) => {
      head += bytes.toString('latin1', 0, longestStatusLine - head.length)
      const outcome = httpAnswer(head)
      if (outcome) told(outcome)
    })
    socket.write(httpRequest(path, host))
  },
  grpc: (_path, host) => askGrpcHealth(host),
}
