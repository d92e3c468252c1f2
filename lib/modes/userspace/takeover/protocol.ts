import { statSync } from 'node:fs'
import { join } from 'node:path'
import { messageOf } from '../../../errors.js'
import type { Libc } from '../../../kernel/sockets/libc.js'
import {
  isQueueFull,
  maxDescriptors,
  PacketSocket,
  type Packet,
} from '../../../kernel/sockets/packet-socket.js'
import type { Log } from '../../mode.js'
import type { GivenListener } from '../listeners/listeners.js'

/*
 * The messages of two processes, each a packet of JSON:
 *   new: { version: 1, want: 'listeners' }
 *   old: { listeners: [...] } with as many descriptors, several times; then { complete: true }
 *   new: { done: true }, once its own rules are written
 *   old: { bye: true }, once its path is free
 * A process that closes the connection earlier has ended or given up.
 */

export const version = 1

interface Message {
  readonly version?: number
  readonly want?: 'listeners'
  readonly listeners?: readonly Omit<GivenListener, 'descriptor'>[]
  readonly complete?: true
  readonly refused?: string
  readonly done?: true
  readonly bye?: true
}

/** Every network namespace has its own listeners, and so its own path. */
export function takeoverPath(folder: string): string {
  return join(folder, `userspace-${statSync('/proc/thread-self/ns/net').ino}.sock`)
}

/** Whether a process waits at the path. Without libc no process can be asked. */
export function isServed(libc: Libc | undefined, path: string): boolean {
  try {
    if (libc) PacketSocket.connect(libc, path).close()
    return libc !== undefined
  } catch (error) {
    return isQueueFull(error)
  }
}

export function say(
  socket: PacketSocket,
  message: Message,
  descriptors: readonly number[] = [],
): Promise<void> {
  return socket.send(JSON.stringify(message), descriptors)
}

export async function sendListeners(
  socket: PacketSocket,
  given: readonly GivenListener[],
): Promise<void> {
  for (let start = 0; start < given.length; start += maxDescriptors) {
    const part = given.slice(start, start + maxDescriptors)
    const descriptors = part.map(({ descriptor }) => descriptor)
    await say(socket, { listeners: part }, descriptors)
  }
  await say(socket, { complete: true })
}

const patienceMs = 5_000

/** A process that is stopped or hangs does not answer, so a long wait is told. */
export function tellLongWait(log: Log, waits: string): NodeJS.Timeout {
  return setTimeout(() => log.warn({}, waits), patienceMs)
}

/** The next packet. */
export async function receive(
  socket: PacketSocket,
  log: Log,
  waits: string,
): Promise<Packet | undefined> {
  const timer = tellLongWait(log, waits)
  try {
    return await socket.receive()
  } finally {
    clearTimeout(timer)
  }
}

/** Empty for JSON that is no object: the other process may have another version. */
export function read({ text }: Packet): Message {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? value : {}
  } catch (error) {
    return { refused: messageOf(error) }
  }
}

/** The listeners of one packet, with their descriptors. */
export function readListeners(packet: Packet): readonly GivenListener[] {
  const { listeners } = read(packet)
  // In another version of the protocol this field may be something else.
  const given: Message['listeners'] = Array.isArray(listeners) ? listeners : []
  return given.flatMap((listener, index) => {
    const descriptor = packet.descriptors[index]
    return descriptor === undefined ? [] : [{ ...listener, descriptor }]
  })
}
