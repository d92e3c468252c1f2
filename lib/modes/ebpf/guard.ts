import { pause } from '../../async.js'
import { messageOf } from '../../errors.js'
import type { ModeContext } from '../mode.js'
import type { Attachment } from './attachment.js'

/** Time between two checks. A check costs a system call for each program. */
const tickMs = 5000

/**
 * Notices when somebody detaches or replaces a program. Until the program is attached again,
 * connections take the packet path, so they still work.
 */
export async function guardPrograms(
  attachment: Pick<Attachment, 'damage'>,
  context: ModeContext,
  signal: AbortSignal,
  syncPeriodMs: number,
): Promise<void> {
  for (;;) {
    await pause(Math.min(tickMs, syncPeriodMs), signal)
    if (signal.aborted) return
    try {
      const reason = attachment.damage()
      if (reason === undefined) continue
      context.log.warn({ reason }, 'eBPF programs were changed by somebody else')
      context.resync(reason, { full: true })
    } catch (error) {
      context.log.warn({ error: messageOf(error) }, 'could not look at the eBPF programs')
    }
  }
}
