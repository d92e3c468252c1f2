import { failureOf, kernelErrorOf } from '../netlink/failure.js'
import { Attributes, nativeBytes, nativeText } from './attributes.js'
import type { SystemCalls } from './system-calls.js'
import { ifThere } from '../../errors.js'

/** `enum bpf_cmd`. */
export const commands = {
  createMap: 0,
  lookup: 1,
  update: 2,
  delete: 3,
  loadProgram: 5,
  pin: 6,
  openPin: 7,
  programFromId: 13,
  mapFromId: 14,
  info: 15,
  queryCgroup: 16,
  loadBtf: 18,
  lookupBatch: 24,
  updateBatch: 26,
  createLink: 28,
  updateLink: 29,
  linkFromId: 30,
  nextLinkId: 31,
  detachLink: 34,
  bindMap: 35,
} as const

/** Runs a command; `action` starts the message of the KernelError when the kernel refuses. */
export function run(
  calls: SystemCalls,
  command: keyof typeof commands,
  attributes: Attributes,
  action: string,
): number {
  const result = calls.bpf(commands[command], attributes.bytes)
  if (result >= 0) return result
  throw kernelErrorOf(failureOf(-result), action)
}

/**
 * What the kernel tells of an open object, as far as there is room. `info` may say beforehand where
 * lists shall go.
 */
export function readInfo(calls: SystemCalls, fd: number, info: Buffer, action: string): Buffer {
  const attributes = new Attributes(calls, 16).u32(0, fd).u32(4, info.length).pointer(8, info)
  run(calls, 'info', attributes, action)
  return info
}

/** Gives a map or a link a path under a mounted bpffs, where it outlives this process. */
export function pin(calls: SystemCalls, fd: number, path: string): void {
  const attributes = new Attributes(calls, 16).pointer(0, nativeText(path)).u32(8, fd)
  run(calls, 'pin', attributes, `pin ${path}`)
}

/** The descriptor of the object that is pinned at the path; undefined when there is none. */
export function openPinned(calls: SystemCalls, path: string): number | undefined {
  const attributes = new Attributes(calls, 16).pointer(0, nativeText(path))
  return ifThere(() => run(calls, 'openPin', attributes, `open ${path}`))
}

/** Whether two descriptors are of the same map or link. */
export function isSame(calls: SystemCalls, one: number, other: number): boolean {
  const infoOf = (fd: number) => readInfo(calls, fd, nativeBytes(32), 'look at an eBPF object')
  return infoOf(one).equals(infoOf(other))
}
