import { openSystemCalls } from '../../kernel/bpf/system-calls.js'
import { KernelError, messageOf } from '../../errors.js'
import { mountsOf } from '../../kernel/cgroup.js'
import type { ModeContext } from '../mode.js'
import { detachQuietly, linkName } from './attachment.js'
import { dropAllPins, hasPins, Pins } from './pins.js'
import { socketHooks } from './programs/programs.js'

/**
 * Detaches the programs that an earlier run left pinned. It looks at every bpffs, because cleanup
 * does not know which one was configured. Programs without pins ended with their process.
 */
export function cleanupSockets(
  { log }: Pick<ModeContext, 'log'>,
  mounts?: readonly string[],
): Promise<void> {
  const work = Promise.resolve().then(() => {
    for (const bpffs of mounts ?? mountsOf('bpf')) dropPinned(bpffs, log)
  })
  return work.catch((error: unknown) => {
    // A node without eBPF has nothing to remove.
    if (!(error instanceof KernelError) || error.kind === 'denied') throw error
    log.debug({ reason: messageOf(error) }, 'no eBPF programs to remove')
  })
}

function dropPinned(bpffs: string, log: ModeContext['log']): void {
  if (!hasPins(bpffs)) return
  const calls = openSystemCalls()
  const pins = Pins.open(calls, bpffs, log)
  if ('missing' in pins)
    throw new KernelError('denied', `remove eBPF pins at ${bpffs}: ${pins.missing}`)
  for (const hook of socketHooks) {
    const link = pins.find(linkName(hook))
    if (link === undefined) continue
    detachQuietly(calls, link)
    calls.close(link)
  }
  dropAllPins(bpffs)
}
