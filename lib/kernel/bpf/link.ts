import { ifThere } from '../../errors.js'
import { Attributes, nativeBytes } from './attributes.js'
import { readInfo, run } from './commands.js'
import { hooks, type Hook } from './program.js'
import type { SystemCalls } from './system-calls.js'

/**
 * A link. It keeps a program at a hook of a cgroup as long as somebody has the link open or pinned.
 */
export interface LinkInfo {
  readonly id: number
  readonly programId: number
  /** 0 after somebody detached the link, or after its cgroup was removed. */
  readonly cgroupId: bigint
}

export function createLink(
  calls: SystemCalls,
  link: { readonly hook: Hook; readonly program: number; readonly cgroup: number },
): number {
  const attributes = new Attributes(calls, 16)
    .u32(0, link.program)
    .u32(4, link.cgroup)
    .u32(8, hooks[link.hook])
  return run(calls, 'createLink', attributes, `attach an eBPF program at ${link.hook}`)
}

/** Replaces the program of a link in one step: one of the two runs at any moment. */
export function updateLink(calls: SystemCalls, link: number, program: number): void {
  const attributes = new Attributes(calls, 16).u32(0, link).u32(4, program)
  run(calls, 'updateLink', attributes, 'replace the eBPF program of a link')
}

/** Detaches the program from its hook, even if others have the link open. */
export function detachLink(calls: SystemCalls, link: number): void {
  run(calls, 'detachLink', new Attributes(calls, 4).u32(0, link), 'detach an eBPF link')
}

const cgroupType = 3

/**
 * Calls `visit` with every link that keeps a program at a cgroup, also with links of other
 * software. The descriptor is closed afterwards. Needs CAP_SYS_ADMIN.
 */
export function forEachCgroupLink(
  calls: SystemCalls,
  cgroupId: bigint,
  visit: (link: number, info: LinkInfo) => void,
): void {
  for (let id = 0; ;) {
    const place = new Attributes(calls, 12).u32(0, id)
    const next = ifThere(() => run(calls, 'nextLinkId', place, 'list eBPF links'))
    if (next === undefined) return
    id = place.bytes.readUInt32LE(4)
    const open = new Attributes(calls, 12).u32(0, id)
    const link = ifThere(() => run(calls, 'linkFromId', open, `open eBPF link ${id}`))
    if (link === undefined) continue
    try {
      const info = linkInfo(calls, link)
      if (info.cgroupId === cgroupId) visit(link, info)
    } finally {
      calls.close(link)
    }
  }
}

export function linkInfo(calls: SystemCalls, link: number): LinkInfo {
  const info = readInfo(calls, link, nativeBytes(32), 'look at an eBPF link')
  return {
    id: info.readUInt32LE(4),
    programId: info.readUInt32LE(8),
    cgroupId: info.readUInt32LE(0) === cgroupType ? info.readBigUInt64LE(16) : 0n,
  }
}
