/**
 * The thread that checks endpoints. Messages tell it what to check; it reports what has changed.
 */
import { parentPort } from 'node:worker_threads'
import { setUpEngine } from '../../engine.js'
import { PolledProbes } from './polled-probes.js'
import { probe } from './probe.js'
import { mostAtATime, Schedule } from './schedule.js'
import { Turns, turnMs } from './turns.js'
import type { CheckReport, CheckTarget, TargetChanges, Turn } from './messages.js'
import type { Libc } from '../../kernel/sockets/libc.js'
import type { Outcome } from './outcome.js'

setUpEngine()

/** Endpoints that fail together, such as those of a dead node, are reported together. */
const tellAfterMs = 20
const countEveryMs = 1000

let turned: Turn[] = []

function tell(): void {
  const counts = schedule.takeCounts()
  if (turned.length === 0 && counts.good + counts.bad + counts.unknown === 0) return
  const report: CheckReport = { turns: turned, counts }
  parentPort?.postMessage(report)
  turned = []
}

const now = () => performance.now()
const turns = new Turns({
  now,
  timer: (ms, then) => {
    const timer = setTimeout(then, ms)
    return () => clearTimeout(timer)
  },
  turnMs,
})

/** Sockets of Node take three times as long, but work also where system calls cannot be made. */
async function createProbe(): Promise<(target: CheckTarget) => Promise<Outcome>> {
  const { loadLibc } = await import('../../kernel/sockets/libc.js')
  const libc = await loadLibc().catch((): Libc | undefined => undefined)
  if (!libc) return probe
  const soon = (then: () => void) => void turns.wait(0, then)
  const polled = new PolledProbes({ libc, now, turnMs, soon })
  return (target) => (target.check.kind === 'grpc' ? probe(target) : polled.probe(target))
}

const schedule = new Schedule({
  probe: await createProbe(),
  turned: (turn) => {
    if (turned.push(turn) === 1) setTimeout(tell, tellAfterMs)
  },
  now,
  random: Math.random,
  turns,
  most: mostAtATime,
})

parentPort?.on('message', ({ set, remove }: TargetChanges) => {
  for (const id of remove) schedule.remove(id)
  for (const target of set) schedule.set(target)
})
setInterval(tell, countEveryMs)
