import type { ModeContext } from '../../lib/modes/mode.js'

/** A context that keeps the reasons of requested syncs, and logs nothing. */
export function contextOf(): { readonly context: ModeContext; readonly resyncs: string[] } {
  const resyncs: string[] = []
  const silent = () => undefined
  const context: ModeContext = {
    log: { debug: silent, info: silent, warn: silent, error: silent },
    meter: { count: silent, gauge: silent, observe: silent, forget: silent },
    resync: (reason) => void resyncs.push(reason),
  }
  return { context, resyncs }
}
