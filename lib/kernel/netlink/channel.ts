import { setTimeout } from 'node:timers/promises'
import { Slice, Turns } from '../../async.js'
import { KernelError } from '../../errors.js'
import {
  failureFromAck,
  failureFromDone,
  failureOf,
  kernelErrorOf,
  type NetlinkFailure,
} from './failure.js'
import { forEachMessage, type Message } from './message-reader.js'
import type { MessageWriter } from './message-writer.js'
import { controlTypes, flags, hostBytes } from './protocol.js'
import { errno } from '../sockets/errno.js'
import { openSocket, type NetlinkPipe, type OpenPipe, type SocketOptions } from './socket.js'

/** The kernel's answer to a datagram of one or more messages. */
interface Answer {
  /** Messages that are not acknowledgements; the caller may keep their bytes. */
  readonly replies: readonly Message[]
  /** By the index of the message in the datagram. */
  readonly failures: ReadonlyMap<number, NetlinkFailure>
  /** How many messages were acknowledged as done. */
  readonly acknowledged: number
  /** The answer was larger than the socket's buffer: failures may be missing. */
  readonly overrun: boolean
}

interface DumpOptions<T> {
  /** Starts the KernelError's message: `list virtual servers`. */
  readonly action: string
  /** Reads one message; undefined leaves it out. The payload is valid during the call only. */
  readonly parse: (message: Message) => T | undefined
}

/** Requests and dumps over netlink. Unit tests put a fake here. */
export interface NetlinkChannel {
  /**
   * Sends all messages of the writer in one system call and reads all answers, without waiting: the
   * kernel works while `send` runs. A refusal is part of the answer and is never thrown.
   */
  transact(writer: MessageWriter): Answer
  /** The same for work that takes the kernel long. The event loop goes on meanwhile. */
  transactAside(writer: MessageWriter): Promise<Answer>
  /** Sends one message that wants an acknowledgement; throws a KernelError when refused. */
  request(writer: MessageWriter, action: string): readonly Message[]
  /**
   * Lists a table. Other work runs between the parts, so the table may change meanwhile. The list is
   * read again when the kernel reports such a change. Dumps of one channel run one after another.
   */
  dump<T>(writer: MessageWriter, options: DumpOptions<T>): Promise<T[]>
  close(): void
}

interface ChannelOptions extends SocketOptions {
  readonly openPipe?: OpenPipe
  /** Whether there is a socket for `transactAside`. */
  readonly worksAside?: boolean
  /** How long dumps may keep the event loop for themselves, also many small ones in a row. */
  readonly sliceMs?: number
}

const dumpAttempts = 5
/**
 * After so many empty reads a dump is given up. The next part is there at once, unless the kernel
 * is short of memory.
 */
const emptyReads = 2000

export function openChannel(protocol: number, options: ChannelOptions = {}): NetlinkChannel {
  const openPipe = options.openPipe ?? openSocket
  const pipe = openPipe(protocol, options)
  // Requests may come while a dump or long work runs, so these have sockets of their own. All are
  // opened here, so that they are in the same network namespace.
  const dumpPipe = openPipe(protocol, options)
  const asidePipe = options.worksAside ? openPipe(protocol, options) : undefined
  const pace = new Pace(options.sliceMs ?? 5)
  let sequence = 1
  const dumps = new Turns()

  const transact = (writer: MessageWriter): Answer => {
    const first = sequence
    sequence = (sequence + writer.messages) >>> 0
    pipe.send(writer.finish(first))
    return collectAnswer(pipe, first, writer.messages)
  }

  return {
    transact,
    async transactAside(writer) {
      if (!asidePipe) return transact(writer)
      const first = sequence
      sequence = (sequence + writer.messages) >>> 0
      await asidePipe.sendAside(writer.finish(first))
      return collectAnswer(asidePipe, first, writer.messages)
    },
    request(writer, action) {
      const answer = transact(writer)
      const failure = answer.failures.get(0)
      if (failure) throw kernelErrorOf(failure, action)
      if (answer.overrun) throw kernelErrorOf(failureOf(errno.ENOBUFS), action)
      if (answer.acknowledged === 0 && answer.replies.length === 0) {
        throw new KernelError('failed', `${action}: the kernel did not answer`)
      }
      return answer.replies
    },
    dump(writer, dumpOptions) {
      const request = Buffer.from(writer.finish(0))
      const nextSequence = () => sequence++ >>> 0
      return dumps.take(() => dump(dumpPipe, request, nextSequence, { pace, ...dumpOptions }))
    },
    close() {
      for (const each of [pipe, dumpPipe, asidePipe]) each?.close()
    },
  }
}

function collectAnswer(pipe: NetlinkPipe, first: number, count: number): Answer {
  const replies: Message[] = []
  const failures = new Map<number, NetlinkFailure>()
  let acknowledged = 0
  let overrun = false
  for (;;) {
    const received = pipe.receive()
    if (received.kind === 'nothing') return { replies, failures, acknowledged, overrun }
    if (received.kind === 'overrun') {
      overrun = true
      continue
    }
    forEachMessage(received.data, (message) => {
      const index = (message.sequence - first) >>> 0
      // The message answers an earlier request that was given up.
      if (index >= count) return
      if (message.type === controlTypes.error) {
        const failure = failureFromAck(message.payload, message.flags)
        if (failure) failures.set(index, failure)
        else acknowledged++
      } else if (message.type >= 16) {
        replies.push({ ...message, payload: Buffer.from(message.payload) })
      }
    })
  }
}

/**
 * Lets the event loop go on after a slice of time, but not before some work is done: where other
 * programs take the processor, the time alone would be over at each of many short dumps.
 */
class Pace {
  readonly #slice: Slice
  #work = 0

  constructor(sliceMs: number) {
    this.#slice = new Slice(sliceMs)
  }

  async read(bytes: number): Promise<void> {
    this.#work += bytes + workOfCall
    if (this.#work < leastWork || !this.#slice.isOver) return
    await this.#slice.rest()
    this.#work = 0
  }
}

/** In bytes; a system call counts as many. */
const leastWork = 32 * 1024
const workOfCall = 512

interface DumpSettings<T> extends DumpOptions<T> {
  readonly pace: Pace
}

async function dump<T>(
  pipe: NetlinkPipe,
  request: Buffer,
  nextSequence: () => number,
  settings: DumpSettings<T>,
): Promise<T[]> {
  for (let attempt = 0; attempt < dumpAttempts; attempt++) {
    const sequence = nextSequence()
    const result = await dumpOnce(pipe, request, sequence, settings)
    if (result.error !== undefined) throw result.error
    if (!result.interrupted) return result.items
  }
  throw new KernelError(
    'busy',
    `${settings.action}: the table changed during each of ${dumpAttempts} attempts to read it`,
  )
}

/** One dump as far as it is read. */
interface DumpResult<T> {
  readonly items: T[]
  interrupted: boolean
  error: Error | undefined
  isDone: boolean
}

/** Reads one dump to its very end, whatever happens: a dump left half-read blocks the next one. */
async function dumpOnce<T>(
  pipe: NetlinkPipe,
  request: Buffer,
  sequence: number,
  settings: DumpSettings<T>,
): Promise<DumpResult<T>> {
  const result: DumpResult<T> = { items: [], interrupted: false, error: undefined, isDone: false }
  let empty = 0
  request.set(hostBytes(sequence), 8)
  pipe.send(request)
  while (!result.isDone) {
    const received = pipe.receive()
    if (received.kind === 'datagram') {
      empty = 0
      forEachMessage(received.data, (message) => {
        if (message.sequence === sequence) readDumped(result, message, settings)
      })
    } else if (received.kind === 'overrun') {
      result.interrupted = true
    } else {
      if (++empty > emptyReads) {
        result.error ??= new KernelError('failed', `${settings.action}: the list has no end`)
        break
      }
      await setTimeout(1)
    }
    await settings.pace.read(received.kind === 'datagram' ? received.data.length : 0)
  }
  return result
}

function readDumped<T>(
  result: DumpResult<T>,
  message: Message,
  { action, parse }: DumpSettings<T>,
): void {
  if (result.isDone) return
  if ((message.flags & flags.dumpInterrupted) !== 0) result.interrupted = true
  if (message.type === controlTypes.done || message.type === controlTypes.error) {
    result.isDone = true
    const failure =
      message.type === controlTypes.done
        ? failureFromDone(message.payload)
        : failureFromAck(message.payload, message.flags)
    if (failure) result.error ??= kernelErrorOf(failure, action)
  } else if (message.type >= 16 && result.error === undefined) {
    try {
      const item = parse(message)
      if (item !== undefined) result.items.push(item)
    } catch (thrown) {
      result.error = thrown instanceof Error ? thrown : new Error(String(thrown))
    }
  }
}
