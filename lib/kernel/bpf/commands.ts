import { failureOf, kernelErrorOf } from '../netlink/failure.js'
import { Attributes } from './attributes.js'
import type { SystemCalls } from './system-calls.js'

/** `enum bpf_cmd`. */
export const commands = {
  createMap: 0,
  lookup: 1,
  update: 2,
  delete: 3,
  nextKey: 4,
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
  deleteBatch: 27,
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

export const errnos = { noEntry: 2, again: 11, noSpace: 28 } as const
