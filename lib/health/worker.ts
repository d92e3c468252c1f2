/** The thread that checks endpoints. It is told what to check, and tells what has changed. */
import { parentPort } from 'node:worker_threads'
import { PolledProbes } from './polled-probes.js'
import { probe } from './probe.js'
import { Schedule } from './schedule.js'
import type { CheckReport, CheckTarget, TargetChanges, Turn } from './messages.js'
import type { Libc } from '../kernel/sockets/libc.js'
import type { Outcome } from './outcome.js'

/** Enough for 10,000 endpoints of which a tenth never answers; few descriptors in any process. */
const mostAtATime = 256
/** Checks begin, and are looked at, only so often: to wake up costs more than a check. */
const turnMs = 50
/** Endpoints that go together, such as those of a dead node, are told together. */
const tellAfterMs = 20
const countEveryMs = 1000

let turns: Turn[] = []

function tell(): void {
  const counts = schedule.takeCounts()
  if (turns.length === 0 && counts.good + counts.bad + counts.unknown === 0) return
  const report: CheckReport = { turns, counts }
  parentPort?.postMessage(report)
  turns = []
}

/** At the last turn before so many milliseconds have passed, or at the next one. */
function wait(ms: number, then: () => void): () => void {
  const now = performance.now()
  const turn = Math.max(Math.floor((now + ms) / turnMs), Math.floor(now / turnMs) + 1)
  const timer = setTimeout(then, turn * turnMs - now)
  return () => clearTimeout(timer)
}

/** Sockets of Node do the same for three times the price, and also where system calls cannot be made. */
async function createProbe(): Promise<(target: CheckTarget) => Promise<Outcome>> {
  const { loadLibc } = await import('../kernel/sockets/libc.js')
  const libc = await loadLibc().catch((): Libc | undefined => undefined)
  if (!libc) return probe
  const now = () => performance.now()
  const polled = new PolledProbes({ libc, now, turnMs, soon: (then) => void wait(0, then) })
  return (target) => (target.check.kind === 'grpc' ? probe(target) : polled.probe(target))
}

const schedule = new Schedule({
  probe: await createProbe(),
  turned: (turn) => {
    if (turns.push(turn) === 1) setTimeout(tell, tellAfterMs)
  },
  now: () => performance.now(),
  random: Math.random,
  wait,
  most: mostAtATime,
})

parentPort?.on('message', ({ set, remove }: TargetChanges) => {
  for (const id of remove) schedule.remove(id)
  for (const target of set) schedule.set(target)
})
setInterval(tell, countEveryMs)
