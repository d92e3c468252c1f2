import { KernelError } from '../../errors.js'
import { Attributes, nativeText } from './attributes.js'
import { run } from './commands.js'
import type { SystemCalls } from './system-calls.js'

/** Gives a map or a link a path under a mounted bpffs, where it outlives this process. */
export function pin(calls: SystemCalls, fd: number, path: string): void {
  const attributes = new Attributes(calls, 16).pointer(0, nativeText(path)).u32(8, fd)
  run(calls, 'pin', attributes, `pin ${path}`)
}

/** The descriptor of the object that is pinned at the path; undefined when there is none. */
export function openPinned(calls: SystemCalls, path: string): number | undefined {
  const attributes = new Attributes(calls, 16).pointer(0, nativeText(path))
  try {
    return run(calls, 'openPin', attributes, `open ${path}`)
  } catch (error) {
    if (error instanceof KernelError && error.kind === 'not-found') return undefined
    throw error
  }
}
