import { KernelError } from '../../errors.js'
import { failureOf, kernelErrorOf } from '../netlink/failure.js'
import { Attributes, nativeBytes, nativeCopy, nativeText } from './attributes.js'
import { commands, readInfo, run } from './commands.js'
import { errno } from '../sockets/errno.js'
import { readString } from '../netlink/message-reader.js'
import { instructionBytes } from './instructions.js'
import type { SystemCalls } from './system-calls.js'

/** Hooks for programs of sockets, with their numbers in `enum bpf_attach_type`. */
export const hooks = {
  sock_ops: 3,
  connect4: 10,
  connect6: 11,
  sendmsg4: 14,
  sendmsg6: 15,
  recvmsg4: 19,
  recvmsg6: 20,
  getpeername4: 29,
  getpeername6: 30,
  sock_release: 34,
} as const

export type Hook = keyof typeof hooks

/** A `socket_filter` belongs to one socket. It has no hook: `setsockopt` attaches it. */
type ProgramKind = Hook | 'socket_filter'

/**
 * The numbers in `enum bpf_prog_type`. They decide what a program may read and which helpers it
 * calls.
 */
const types: Readonly<Partial<Record<ProgramKind, number>>> = {
  socket_filter: 1,
  sock_release: 9,
  sock_ops: 13,
}
/** The type at all other hooks. */
const socketAddress = 18

interface ProgramSpec {
  /** The name that bpftool shows and that others search for; the kernel keeps 15 characters. */
  readonly name: string
  readonly hook: ProgramKind
  readonly code: Buffer
}

/** The end of the verifier's log says what is wrong. */
const logBytes = 256 * 1024
const logTail = 2000
const attempts = 100

/** The helpers that are used here do not demand a GPL license. */
const license = 'Apache-2.0'

/** Returns the descriptor of a verified program. A KernelError has the verifier's words in `detail`. */
export function loadProgram(calls: SystemCalls, spec: ProgramSpec): number {
  const first = tryLoad(calls, spec, undefined)
  if (first >= 0) return first
  // Only the second attempt asks for a log: writing one takes longer than verifying.
  const log = nativeBytes(logBytes)
  const result = tryLoad(calls, spec, log)
  if (result >= 0) return result
  const end = log.indexOf(0)
  const text = log.toString('utf8', 0, end < 0 ? log.length : end).trim()
  const { kind, message } = kernelErrorOf(failureOf(-result), `load eBPF program ${spec.name}`)
  const detail = text.slice(-logTail)
  const last = detail.split('\n').findLast((line) => !line.startsWith('processed ')) ?? ''
  throw new KernelError(kind, last === '' ? message : `${message}: ${last}`, { detail })
}

function tryLoad(calls: SystemCalls, spec: ProgramSpec, log: Buffer | undefined): number {
  const { name, hook, code } = spec
  const attributes = new Attributes(calls, 72)
    .u32(0, types[hook] ?? socketAddress)
    .u32(4, code.length / instructionBytes)
    .pointer(8, nativeCopy(code))
    .pointer(16, nativeText(license))
    .name(48, name)
    .u32(68, hook === 'socket_filter' ? 0 : hooks[hook])
  if (log) attributes.u32(24, 1).u32(28, log.length).pointer(32, log)
  for (let attempt = 1; ; attempt++) {
    const result = calls.bpf(commands.loadProgram, attributes.bytes)
    // The verifier stops when a signal comes. The program is then loaded again.
    if (result !== -errno.EAGAIN || attempt === attempts) return result
  }
}

/** Keeps a map with a program that does not use it, as a note for whoever looks at the program. */
export function bindMap(calls: SystemCalls, program: number, map: number): void {
  const attributes = new Attributes(calls, 12).u32(0, program).u32(4, map)
  run(calls, 'bindMap', attributes, 'keep a note with an eBPF program')
}

/** The name and number of a loaded program. */
export interface ProgramInfo {
  readonly id: number
  readonly name: string
}

export const programInfoBytes = 80

export function programInfo(calls: SystemCalls, fd: number): ProgramInfo {
  const info = readInfo(calls, fd, nativeBytes(programInfoBytes), 'look at an eBPF program')
  return { id: info.readUInt32LE(4), name: readString(info.subarray(64, 80)) }
}
