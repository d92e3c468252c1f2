/** A thread that copies bytes. It has one data path, and messages tell it what to listen on. */
import { parentPort, workerData } from 'node:worker_threads'
import { setUpEngine } from '../../../engine.js'
import { codeOf, messageOf } from '../../../errors.js'
import { createDataPath, type DataPath } from '../datapath/create-data-path.js'
import type { AccessEntry, ListenerSpec } from '../datapath/data-path.js'
import { DescriptorBudget } from '../datapath/descriptors.js'
import { OwnFrontends } from '../datapath/own-frontends.js'
import { SourceKeeper } from '../datapath/source-keeper.js'
import type {
  OpenFailure,
  Outcome,
  ToWorker,
  WorkerAnswer,
  WorkerReport,
  WorkerData,
} from './messages.js'

setUpEngine()

const countsEveryMs = 1000
const accessLogEveryMs = 100
/** A worker that reports a sample reports so many connections a second. */
const samplePerSecond = 200
const warnEveryMs = 5000

// `workerData` has no type; worker-thread.ts gives it this value.
const settings = workerData as WorkerData

function post(message: WorkerAnswer | WorkerReport): void {
  parentPort?.postMessage(message)
}

/** Sends the same warning at most every few seconds, with the number of repetitions. */
function createWarner(): (message: string) => void {
  const muted = new Map<string, number>()
  return (message) => {
    const repeated = muted.get(message)
    if (repeated !== undefined) {
      muted.set(message, repeated + 1)
      return
    }
    post({ kind: 'warning', message, repeated: 0 })
    muted.set(message, 0)
    setTimeout(() => {
      const count = muted.get(message) ?? 0
      muted.delete(message)
      if (count > 0) post({ kind: 'warning', message, repeated: count })
    }, warnEveryMs).unref()
  }
}

/** Collects entries, so that a busy service port does not send a message for each connection. */
function createAccessLog(perSecond: number) {
  let entries: AccessEntry[] = []
  let leftOut = 0
  let second = -1
  let passed = 0
  let timer: NodeJS.Timeout | undefined
  const flush = () => {
    clearTimeout(timer)
    timer = undefined
    if (entries.length + leftOut > 0) post({ kind: 'access', entries, leftOut })
    entries = []
    leftOut = 0
  }
  const add = (entry: AccessEntry) => {
    const now = Math.floor(performance.now() / 1000)
    if (now !== second) passed = 0
    second = now
    if (passed++ < perSecond) entries.push(entry)
    else leftOut++
    timer ??= setTimeout(flush, accessLogEveryMs)
  }
  return { add, flush }
}

/** Undefined without koffi, because then no socket can have a foreign address, either. */
async function openKeeper(): Promise<SourceKeeper | undefined> {
  const { sources } = settings
  if (!sources) return undefined
  try {
    const { Routes } = await import('../../../kernel/routes.js')
    return new SourceKeeper(sources, new Routes(), () => performance.now())
  } catch {
    return undefined
  }
}

async function open(path: DataPath, specs: readonly ListenerSpec[]): Promise<Outcome> {
  const opened: { key: string; port: number }[] = []
  const failed: OpenFailure[] = []
  await Promise.all(
    specs.map(async (spec) => {
      const { key } = spec
      try {
        opened.push({ key, port: await path.open(spec) })
      } catch (error) {
        failed.push({ key, code: codeOf(error) || 'EFAILED', message: messageOf(error) })
      }
    }),
  )
  return { opened, failed }
}

async function perform(path: DataPath, { kind, items }: ToWorker): Promise<Outcome> {
  switch (kind) {
    case 'open':
      return open(path, items)
    case 'update':
      for (const [key, changes] of items) path.update(key, changes)
      break
    case 'close':
      for (const key of items) path.close(key)
      break
    case 'handOver':
      for (const key of items) path.handOver(key)
      break
    case 'frontends':
      for (const [key, frontends] of items) ownFrontends.set(key, frontends)
      break
    case 'cut':
      for (const address of items) path.cut(address)
      break
    case 'descriptors':
      return {
        descriptors: items.flatMap((key) => {
          const descriptor = path.descriptorOf(key)
          return descriptor === undefined ? [] : [{ key, descriptor }]
        }),
      }
    case 'drain':
      for (const graceMs of items) await path.drain(graceMs)
      accessLog?.flush()
      postCounts()
  }
  return {}
}

const warn = createWarner()
// By default Node prints its warnings as plain text, among the lines of the log.
process.removeAllListeners('warning')
process.on('warning', ({ name, message }) => warn(`${name}: ${message}`))
const accessLimit = settings.accessLog === 'all' ? Infinity : samplePerSecond
const accessLog = settings.accessLog === 'none' ? undefined : createAccessLog(accessLimit)
const ownFrontends = new OwnFrontends()
const keeper = await openKeeper()
const { path, note } = await createDataPath(settings.dataPath, {
  now: () => performance.now(),
  random: Math.random,
  descriptors: new DescriptorBudget(settings.descriptors, settings.held),
  passiveHealth: settings.passiveHealth,
  sourceKeeper: keeper,
  ownFrontends,
  accessLog: accessLog?.add,
  warn,
})
// Raw sockets would outlive the thread, with clients that wait and ports that nobody can open.
process.on('uncaughtExceptionMonitor', () => path.abort())
// Messages are handled one after the other: a close must not overtake the open before it.
let previous = Promise.resolve()
parentPort?.on('message', (message: ToWorker) => {
  previous = previous.then(async () => {
    post({ id: message.id, ...(await perform(path, message)) })
  })
})

function postCounts(): void {
  const counts = path.takeCounts()
  if (counts.length > 0) post({ kind: 'counts', counts })
}

setInterval(postCounts, countsEveryMs).unref()
post({ kind: 'ready', dataPath: path.name, note })
