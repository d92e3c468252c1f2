import { encodeAddress, familyOf } from '../../kernel/sockets/socket-address.js'
import { allocateNative, type NativeMemory, type Libc } from '../../kernel/sockets/libc.js'
import { errno, errnoName } from '../../kernel/sockets/errno.js'
import {
  closedTooSoon,
  good,
  late,
  refusal,
  type Outcome,
  httpAnswer,
  httpRequest,
  longestStatusLine,
} from './outcome.js'
import { hostPort } from '../../state/ip.js'
import { Sockets } from '../../kernel/sockets/sockets.js'
import type { CheckTarget } from './messages.js'

const mostIdle = 64
/** An address of family AF_UNSPEC. To connect to it ends a connection. */
const nobody = new Uint8Array(16)

interface Attempt {
  readonly target: CheckTarget
  readonly fd: number
  readonly address: Uint8Array
  /** Milliseconds that the check may still take. */
  left: number
  isConnected: boolean
  head: string
  readonly resolve: (outcome: Outcome) => void
}

interface PolledDeps {
  readonly libc: Libc
  /** Milliseconds of a clock that nobody can set. */
  readonly now: () => number
  /** Calls back at the next turn, at which all checks begin. */
  readonly soon: (then: () => void) => void
  /** The usual time between two turns. */
  readonly turnMs: number
}

/**
 * Checks by TCP and HTTP, on sockets that are plain numbers. No check waits for an event: all
 * running checks are looked at together, many times a second. This takes a third of the time of
 * sockets of Node (`npm run bench -- health`).
 */
export class PolledProbes {
  readonly #deps: PolledDeps
  readonly #sockets: Sockets
  readonly #buffer: NativeMemory
  readonly #attempts = new Set<Attempt>()
  /** Sockets without a peer, by address family. */
  readonly #idle = new Map<number, number[]>()
  readonly #addresses = new WeakMap<CheckTarget, Uint8Array>()
  readonly #lookAgain = () => this.#look()
  #lookedAt = 0

  constructor(deps: PolledDeps) {
    this.#deps = deps
    this.#sockets = new Sockets(deps.libc)
    this.#buffer = allocateNative(deps.libc, 1024)
  }

  /** Never rejects. */
  probe(target: CheckTarget): Promise<Outcome> {
    const address = this.#addressOf(target)
    const family = familyOf(address)
    const fd = this.#idle.get(family)?.pop() ?? this.#sockets.open(family, 'stream')
    if (fd < 0) return Promise.resolve(refusal(errnoName(fd)))
    return new Promise((resolve) => {
      const left = target.check.timeoutMs + this.#sinceLook()
      const attempt = { target, fd, address, left, isConnected: false, head: '', resolve }
      const began = this.#sockets.connect(fd, address)
      if (began < 0 && began !== -errno.EINPROGRESS) {
        this.#end(attempt, refusal(errnoName(began)))
        return
      }
      this.#attempts.add(attempt)
      if (this.#attempts.size > 1) return
      this.#lookedAt = this.#deps.now()
      this.#deps.soon(this.#lookAgain)
    })
  }

  /**
   * The time that the next look takes from a check. A new check was not there in the part of it that
   * is over. Time in which this thread was held up does not count against the endpoint.
   */
  #sinceLook(): number {
    const { now, turnMs } = this.#deps
    return this.#attempts.size === 0 ? 0 : Math.min(now() - this.#lookedAt, 2 * turnMs)
  }

  #look(): void {
    const { now, soon } = this.#deps
    const passed = this.#sinceLook()
    this.#lookedAt = now()
    for (const attempt of this.#attempts) {
      const outcome = this.#lookAt(attempt)
      attempt.left -= passed
      if (outcome) this.#end(attempt, outcome)
      else if (attempt.left <= 0)
        this.#end(attempt, late(attempt.target.check, attempt.isConnected))
    }
    if (this.#attempts.size > 0) soon(this.#lookAgain)
  }

  #lookAt(attempt: Attempt): Outcome | undefined {
    const { target, fd, address } = attempt
    if (!attempt.isConnected) {
      // A second call of connect tells how the first one ended.
      const connected = this.#sockets.connect(fd, address)
      if (connected === -errno.EALREADY || connected === -errno.EINPROGRESS) return undefined
      if (connected < 0) return refusal(errnoName(connected))
      attempt.isConnected = true
      if (target.check.kind === 'tcp') return good
      return this.#ask(attempt)
    }
    const { address: at, bytes } = this.#buffer
    const count = this.#sockets.receive(fd, at, longestStatusLine - attempt.head.length)
    if (count === -errno.EAGAIN) return undefined
    if (count < 0) return refusal(errnoName(count))
    if (count === 0) return closedTooSoon
    attempt.head += bytes.toString('latin1', 0, count)
    return httpAnswer(attempt.head)
  }

  #ask({ target, fd }: Attempt): Outcome | undefined {
    const { check, ip, port } = target
    const request = httpRequest(check.path, hostPort(ip, check.port ?? port))
    const length = this.#buffer.bytes.write(request, 'latin1')
    const sent = this.#sockets.send(fd, this.#buffer.address, length)
    return sent < 0 ? refusal(errnoName(sent)) : undefined
  }

  #end(attempt: Attempt, outcome: Outcome): void {
    this.#attempts.delete(attempt)
    this.#leave(attempt)
    attempt.resolve(outcome)
  }

  /**
   * Ends the connection with a reset, which leaves nothing behind and stops an endpoint that would
   * send for ever. A socket that connects to nobody sends a reset, too, and can be used again,
   * which saves a quarter of the cost of a check. A socket that was never connected may keep an
   * error for the next check, so it is closed.
   */
  #leave({ fd, address, isConnected }: Attempt): void {
    const family = familyOf(address)
    const idle = this.#idle.get(family) ?? []
    this.#idle.set(family, idle)
    if (isConnected && idle.length < mostIdle && this.#sockets.connect(fd, nobody) === 0) {
      idle.push(fd)
      return
    }
    this.#sockets.resetOnClose(fd)
    this.#sockets.close(fd)
  }

  #addressOf(target: CheckTarget): Uint8Array {
    const known = this.#addresses.get(target)
    if (known) return known
    const address = encodeAddress({ ip: target.ip, port: target.check.port ?? target.port })
    this.#addresses.set(target, address)
    return address
  }
}
