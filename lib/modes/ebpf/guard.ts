import { pause, pauseOfCost, Slice } from '../../async.js'
import { messageOf } from '../../errors.js'
import type { ModeContext } from '../mode.js'
import type { SocketApplier } from './apply.js'
import type { Attachment } from './attachment.js'
import type { Pins } from './pins.js'

/** Time between two looks at the programs. A look costs a system call for each program. */
const programsMs = 5000
/** The least time between two comparisons of the maps, which read every entry. */
const shortestMapsMs = 1000

interface Guarded {
  readonly attachment: Pick<Attachment, 'damage'>
  readonly applier: Pick<SocketApplier, 'damage'>
  readonly pins: Pick<Pins, 'restore'> | undefined
  readonly context: ModeContext
  /** It may change. */
  readonly syncPeriodMs: () => number
}

/**
 * Notices when somebody detaches or replaces a program, removes pins, or changes what the maps hold.
 * Without a program, connections take the packet path until it is attached again, so they still work.
 */
export async function guardSockets(
  { attachment, applier, pins, context, syncPeriodMs }: Guarded,
  signal: AbortSignal,
): Promise<void> {
  const guard = async (
    periodMs: () => number,
    damage: (slice: Slice) => Promise<string | undefined>,
  ) => {
    let restMs = 0
    for (;;) {
      await pause(Math.max(periodMs(), restMs), signal)
      if (signal.aborted) return
      try {
        const slice = new Slice()
        const reason = await damage(slice)
        restMs = slice.workedMs * pauseOfCost
        if (reason === undefined) continue
        context.resync(reason, { byOthers: true })
      } catch (error) {
        context.log.warn(
          { error: messageOf(error) },
          'could not look at what ebpf mode has in the kernel',
        )
      }
    }
  }
  await Promise.all([
    guard(
      () => Math.min(programsMs, syncPeriodMs()),
      () => {
        pins?.restore()
        return Promise.resolve(attachment.damage())
      },
    ),
    guard(
      () => Math.max(shortestMapsMs, syncPeriodMs()),
      (slice) => applier.damage(slice),
    ),
  ])
}
