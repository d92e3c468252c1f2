import { join } from 'node:path'
import { openPinned } from '../../kernel/bpf/commands.js'
import { openSystemCalls } from '../../kernel/bpf/system-calls.js'
import { KernelError, messageOf } from '../../errors.js'
import { mountsOf } from '../../kernel/cgroup.js'
import type { ModeContext } from '../mode.js'
import { detachQuietly, linkName } from './attachment.js'
import { dropPins, pinnedElsewhere, pinnedHere, whyNot } from './pins.js'
import { socketHooks } from './programs/programs.js'

/** How loudly pins are told that others need. Who runs a daemon did not ask for a cleanup. */
type TellsOthers = 'info' | 'debug'

/**
 * Detaches the programs that an earlier run in this network namespace left pinned. It looks at
 * every bpffs, because cleanup does not know which one was configured. Programs without pins ended
 * with their process.
 */
export function cleanupSockets(
  { log }: Pick<ModeContext, 'log'>,
  mounts?: readonly string[],
  level: TellsOthers = 'info',
): Promise<void> {
  return Promise.resolve().then(() => {
    const failures: string[] = []
    const all = mounts ?? mountsOf('bpf')
    // What is read-only here may be mounted elsewhere, too, and then it has no pins any more.
    const writable = all.filter((bpffs) => whyNot(bpffs) === undefined)
    for (const bpffs of new Set([...writable, ...all])) {
      try {
        dropPinned(bpffs, log, level)
      } catch (error) {
        failures.push(messageOf(error))
      }
    }
    if (failures.length > 0) throw new KernelError('denied', failures.join('; '))
  })
}

const advice = 'their programs go on; make it writable, and try again'

function dropPinned(bpffs: string, log: ModeContext['log'], level: TellsOthers): void {
  const others = pinnedElsewhere(bpffs)
  if (others.length > 0) log[level]({ others }, 'eBPF pins of other network namespaces stay')
  const folders = pinnedHere(bpffs)
  if (folders.length === 0) return
  const missing = whyNot(bpffs)
  if (missing !== undefined)
    throw new KernelError('denied', `remove eBPF pins at ${bpffs}: ${missing}; ${advice}`)
  const calls = openSystemCalls()
  for (const folder of folders) {
    for (const hook of socketHooks) {
      const link = openPinned(calls, join(folder, linkName(hook)))
      if (link === undefined) continue
      // Removing the pin is not enough while a process has the link open.
      detachQuietly(calls, link)
      calls.close(link)
    }
  }
  dropPins(bpffs, folders)
}
