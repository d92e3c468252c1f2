import { ifThere } from '../../errors.js'
import { Attributes, nativeBytes } from './attributes.js'
import { readInfo, run } from './commands.js'
import { hooks, programInfo, programInfoBytes, type Hook, type ProgramInfo } from './program.js'
import { BpfMap, openTogether } from './map.js'
import type { SystemCalls } from './system-calls.js'

const mostPrograms = 64
const withThoseAround = 1

/**
 * The programs at a hook of a cgroup itself, or all that a process in the cgroup meets: also those of
 * the cgroups around it.
 */
export function attachedPrograms(
  calls: SystemCalls,
  cgroup: number,
  hook: Hook,
  which: 'own' | 'all' = 'own',
): readonly ProgramInfo[] {
  const ids = nativeBytes(4 * mostPrograms)
  const attributes = new Attributes(calls, 32)
    .u32(0, cgroup)
    .u32(4, hooks[hook])
    .u32(8, which === 'all' ? withThoseAround : 0)
    .pointer(16, ids)
    .u32(24, mostPrograms)
  run(calls, 'queryCgroup', attributes, `list the eBPF programs at ${hook}`)
  return idsIn(ids, attributes.bytes.readUInt32LE(24))
    .map((id) => programFromId(calls, id))
    .filter((program) => program !== undefined)
}

const idsIn = (ids: Buffer, count: number) =>
  Array.from({ length: count }, (_, index) => ids.readUInt32LE(4 * index))

const mostMaps = 64

/**
 * The maps that a program uses, in the order of its code; the caller closes them. Needs
 * CAP_SYS_ADMIN.
 */
export function mapsOfProgram(calls: SystemCalls, program: number): readonly BpfMap[] {
  const open = new Attributes(calls, 12).u32(0, program)
  const fd = run(calls, 'programFromId', open, 'open an eBPF program')
  try {
    const ids = nativeBytes(4 * mostMaps)
    const places = new Attributes(calls, programInfoBytes).u32(52, mostMaps).pointer(56, ids)
    const info = readInfo(calls, fd, places.bytes, 'list the maps of an eBPF program')
    return openTogether((opening) =>
      idsIn(ids, info.readUInt32LE(52)).flatMap((id) => {
        const map = BpfMap.fromId(calls, id)
        return map ? [opening(map)] : []
      }),
    )
  } finally {
    calls.close(fd)
  }
}

/** The program with this number; undefined when it was unloaded meanwhile. */
export function programFromId(calls: SystemCalls, id: number): ProgramInfo | undefined {
  const open = new Attributes(calls, 12).u32(0, id)
  const fd = ifThere(() => run(calls, 'programFromId', open, 'open an eBPF program'))
  if (fd === undefined) return undefined
  try {
    return programInfo(calls, fd)
  } finally {
    calls.close(fd)
  }
}
