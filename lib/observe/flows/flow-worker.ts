/** The thread that reads connections from the kernel. Messages tell it what the Services are. */
import { parentPort, workerData } from 'node:worker_threads'
import { Turns } from '../../async.js'
import { setUpEngine } from '../../engine.js'
import { messageOf } from '../../errors.js'
import { ipFamilies } from '../../state/ip.js'
import { FlowEvents, type FlowReader } from '../../kernel/flow-events.js'
import type { FlowMessage } from '../../kernel/flow-message.js'
import { visitTrackedFlows } from '../../kernel/conntrack.js'
import { FlowCounter } from './flow-counter.js'
import { type FlowLine, Sampler } from './line.js'
import { Refusals } from './refusals.js'
import type { FlowThreadSettings, FromFlowThread, ToFlowThread } from './messages.js'
import { loadCounts, saveCounts, type SavedCounts, type TimeSpan } from './saved-counts.js'
import { SettableClock } from './settable-clock.js'
import { SharedCounts } from './shared-counts.js'

setUpEngine()

/** The pause between two looks, so that a burst of connections is read in one look. */
const lookEveryMs = 50
const saveEveryMs = 10_000
const linesEveryMs = 200
const linesPerSecond = 200
const receiveBufferBytes = 16 << 20
const ringBytes = 4 << 20
/** The reading of the table takes at most this part of a processor. */
const listingShare = 0.02
/** The pause after a reading that failed, if it should have counted what was missed. */
const retryListingMs = 2000
const maxEndpoints = 10_000

// `workerData` has no type; flow-thread.ts gives it this value.
const settings = workerData as FlowThreadSettings

function post(message: FromFlowThread): void {
  parentPort?.postMessage(message)
}

let lines: FlowLine[] = []
/** It is looked at once a look: to ask it for each connection takes longer than to count it. */
const clock = new SettableClock({ now: () => Date.now(), steady: () => performance.now() })
// `postSoon` also reports the lines that are left out after the last line of a burst.
const sampler = new Sampler(linesPerSecond, () => clock.lookedAt, postSoon)
const counter = new FlowCounter({
  now: () => clock.lookedAt,
  msSince: (startedAt) => clock.msSince(startedAt),
  sampler,
  maxEndpoints,
  line: (line) => {
    lines.push(line)
    postSoon()
  },
})

/** What began in this time has been counted by a process that carried it. */
let carried: TimeSpan | undefined

/** The kernel still tracks the client's side, with a listener of that process as the endpoint. */
function wasCarried({ startedAt }: FlowMessage): boolean {
  return carried !== undefined && startedAt >= carried.since && startedAt <= carried.until
}

const reader: FlowReader = {
  opened: (flow) => counter.opened(flow),
  ended: (flow) => {
    if (!wasCarried(flow)) counter.ended(flow)
  },
}

let posting: NodeJS.Timeout | undefined

function postSoon(): void {
  posting ??= setTimeout(postLines, linesEveryMs)
}

function postLines(): void {
  posting = undefined
  const leftOut = sampler.takeLeftOut()
  if (lines.length > 0 || leftOut > 0) post({ kind: 'lines', lines, leftOut })
  lines = []
}

let events: FlowEvents | undefined
let overruns = 0
let isChanged = false
let hasStarted = false

/** Gives new events to the counter; returns whether there were any. */
function look(): boolean {
  clock.look()
  if (!events) return false
  const { count, isWhole } = events.read(reader)
  if (count > 0) isChanged = true
  if (!isWhole) {
    // A lost event may be of a connection that began after this look.
    clock.look()
    overruns++
    counter.missed()
  }
  return count > 0 || !isWhole
}

const refusals =
  settings.refusalGroup === undefined ? undefined : new Refusals(settings.refusalGroup)
const refusalsEveryMs = 250
let hasWarned = false
let isLeaving = false

/**
 * Counts connections that rules refused or dropped. Another process may hold the group for a while,
 * as during a take-over.
 */
function lookAtRefusals(): void {
  if (!refusals || isLeaving) return
  clock.look()
  try {
    refusals.open()
    const { overruns: more } = refusals.read((refusal) => {
      counter.refused(refusal)
      isChanged = true
    })
    overruns += more
  } catch (error) {
    if (!hasWarned) post({ kind: 'warning', reason: messageOf(error) })
    hasWarned = true
  }
}

let listing = Promise.resolve()
let nextListing = 0
let nextTry = 0

/** Reads the table of the kernel, unless it was read a moment ago. */
function list(): Promise<void> {
  listing = listing.then(async () => {
    if (!events || performance.now() < (counter.isMissing ? nextTry : nextListing)) return
    const started = performance.now()
    const usedBefore = process.cpuUsage()
    let isWhole = true
    counter.beginListing()
    try {
      for (const family of ipFamilies) {
        await visitTrackedFlows(family, (flow) => {
          if (!wasCarried(flow)) counter.listed(flow)
        })
      }
    } catch (error) {
      isWhole = false
      nextTry = performance.now() + retryListingMs
      post({ kind: 'warning', reason: messageOf(error) })
    }
    look()
    counter.endListing(isWhole)
    // On a busy node the time on the clock is much longer, and a long pause would follow. The time of
    // the processor is that of all threads.
    const { user, system } = process.cpuUsage(usedBefore)
    const took = Math.min((user + system) / 1000, performance.now() - started)
    nextListing = performance.now() + took / listingShare
  })
  return listing
}

const { stateFile, hearsConnections } = settings
/** Where the mode carries connections, two processes may count at the same time. */
const shared =
  stateFile === '' || hearsConnections ? undefined : new SharedCounts(stateFile, counter)

/** The last one, told once; empty after a success. */
let saveFailure = ''
const savings = new Turns()

/** Two savings at once would write one file, and the next process might find no numbers in it. */
const save = () => savings.take(saveOnce)

async function saveOnce(): Promise<void> {
  // Before the start, the file has the numbers of an earlier process, and this one has none.
  if (stateFile === '' || !isChanged || !hasStarted) return
  isChanged = false
  // Events that the last look read may have come after it began.
  clock.look()
  const saved = shared ? shared.save() : saveCounts(stateFile, { ...counter.save(), carried })
  try {
    await saved
    saveFailure = ''
  } catch (error) {
    // The next time tries it again, also when no connection comes any more.
    isChanged = true
    const reason = `keep the numbers of connections: ${messageOf(error)}`
    if (reason !== saveFailure) post({ kind: 'warning', reason })
    saveFailure = reason
  }
}

/** Starts to read, once the Services are known. */
async function start(): Promise<void> {
  hasStarted = true
  await shared?.catchUp()
  const saved = stateFile === '' || shared ? undefined : await loadCounts(stateFile)
  if (saved) counter.resume(saved)
  carried = saved?.carried
  lookAtRefusals()
  if (refusals) setInterval(lookAtRefusals, refusalsEveryMs).unref()
  if (hearsConnections) await hear(saved)
  setInterval(() => void save(), saveEveryMs).unref()
}

async function hear(saved: SavedCounts | undefined): Promise<void> {
  const { onlyTranslated } = settings
  events = await FlowEvents.open({ receiveBufferBytes, ringBytes, onlyTranslated })
  // Older connections began before counting started, or an earlier process has counted them.
  clock.look()
  counter.missed(saved?.heardUntil ?? settings.startedAt)
  const wait = events.whenReadable(lookOn)
  // While connections come, a timer costs less than to be woken for each.
  function lookOn(): void {
    const hasCome = look()
    if (counter.isMissing) void list()
    if (hasCome) setTimeout(lookOn, lookEveryMs)
    else wait()
  }
  lookOn()
  isChanged = true
  await list()
  post({ kind: 'ready', resumed: saved !== undefined, hasRing: events.hasRing })
}

/**
 * Messages are handled one after the other, so numbers come after the Services that they are about.
 */
let previous = Promise.resolve()
parentPort?.on('message', (message: ToFlowThread) => {
  previous = previous
    .then(() => handle(message))
    .catch((error: unknown) => {
      post({ kind: 'failed', reason: messageOf(error) })
    })
})

async function handle(message: ToFlowThread): Promise<void> {
  // Connections that came so far belong to the Services as they were before.
  if (message.kind !== 'carried') {
    look()
    if (hasStarted) lookAtRefusals()
  }
  switch (message.kind) {
    case 'services':
      counter.change(message)
      if (!hasStarted) await start()
      break
    case 'carried':
      counter.add(message, message.left)
      isChanged = true
      break
    case 'numbers':
      await list()
      await shared?.catchUp()
      counter.present(message.present)
      post({ kind: 'numbers', id: message.id, ...counter.take(), overruns })
      overruns = 0
      break
    case 'leave':
      isLeaving = true
      refusals?.close()
      postLines()
      await save()
      post({ kind: 'left', id: message.id })
      break
    case 'stop':
      isChanged = true
      await save()
      events?.close()
      post({ kind: 'stopped', id: message.id })
      parentPort?.close()
  }
}
