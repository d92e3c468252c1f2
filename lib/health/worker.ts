/** The thread that checks endpoints. It is told what to check, and tells what has changed. */
import { parentPort } from 'node:worker_threads'
import { probe } from './probe.js'
import { Schedule } from './schedule.js'
import type { CheckReport, TargetChanges, Turn } from './messages.js'

/** Enough for 10,000 endpoints of which a tenth never answers; few descriptors in any process. */
const mostAtATime = 256
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

const schedule = new Schedule({
  probe,
  turned: (turn) => {
    if (turns.push(turn) === 1) setTimeout(tell, tellAfterMs)
  },
  now: () => performance.now(),
  random: Math.random,
  wait: (ms, then) => {
    const timer = setTimeout(then, ms)
    return () => clearTimeout(timer)
  },
  most: mostAtATime,
})

parentPort?.on('message', ({ set, remove }: TargetChanges) => {
  for (const id of remove) schedule.remove(id)
  for (const target of set) schedule.set(target)
})
setInterval(tell, countEveryMs)
