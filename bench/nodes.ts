import { setMaxListeners } from 'node:events'
import { aborted } from '../lib/async.js'
import { SourceError } from '../lib/errors.js'
import type { ApiAnswer, ApiRequest } from '../lib/sources/api-client.js'
import { defaultTiming } from '../lib/sources/list-watch-timing.js'
import { ListWatch } from '../lib/sources/list-watch.js'
import type { BenchResults } from './support/results.js'

const nodes = 1000
const outageMs = 60_000
const watchedMs = 60_000

/** The behaviour of the server during the outage. */
type Outage = 'nothing listens' | 'it answers 503'

/** Whether the server still has the history from which watches go on. */
type Return = 'watches go on' | 'all must list again'

/**
 * A thousand nodes come back after an outage of the API: the real list-watch with its real
 * back-off, in simulated time. Each number is for one kind of object.
 */
export async function run(): Promise<BenchResults> {
  const table: Record<string, number | string>[] = []
  const results = []
  for (const outage of ['nothing listens', 'it answers 503'] as const) {
    for (const back of ['watches go on', 'all must list again'] as const) {
      const lists = await comeBack(outage, back)
      const at = (share: number) => (lists[Math.floor((lists.length - 1) * share)] ?? NaN) / 1000
      const most = mostWithin(lists, 1000)
      table.push({ outage, back, 'first s': at(0), 'p50 s': at(0.5), 'last s': at(1), most })
      results.push({
        name: `1,000 nodes after 60 s without the API (${outage}; ${back}): most requests within a second`,
        value: most,
        unit: '',
        note: `from ${at(0).toFixed(1)} to ${at(1).toFixed(1)} s after its return, half within ${at(0.5).toFixed(1)} s`,
      })
    }
  }
  console.table(table)
  return results
}

/** The times of all requests that nodes need before they watch again, in ms after the return. */
async function comeBack(outage: Outage, back: Return): Promise<readonly number[]> {
  const time = new PassingTime()
  const stop = new AbortController()
  setMaxListeners(nodes, stop.signal)
  const asked: number[] = []
  const running = Array.from({ length: nodes }, () => {
    const send = server({ outage, back, time, asked })
    const deps = {
      client: { server: 'http://simulated', send, movedTo: () => undefined },
      timing: defaultTiming,
      isStreamed: false,
      random: Math.random,
      sleep: (ms: number) => time.sleep(ms),
      now: () => time.now,
    }
    const selection = { kind: 'EndpointSlice', path: '/slices' } as const
    return new ListWatch(selection, deps, silentSink).run(stop.signal)
  })
  await time.pass(outageMs + watchedMs)
  stop.abort()
  time.wakeAll()
  await Promise.all(running)
  return asked.sort((a, b) => a - b)
}

const silentSink = {
  upsert: () => undefined,
  remove: () => undefined,
  synced: () => undefined,
  failed: () => undefined,
}

interface Scene {
  readonly outage: Outage
  readonly back: Return
  readonly time: PassingTime
  readonly asked: number[]
}

/** The server as one node sees it: away right after the first list, and back after the outage. */
function server({ outage, back, time, asked }: Scene) {
  return async (request: ApiRequest, signal: AbortSignal): Promise<ApiAnswer> => {
    const isWatch = request.query?.['watch'] !== undefined
    const isAway = time.now > 0 && time.now < outageMs
    if (isAway && outage === 'nothing listens') throw new SourceError('connection refused')
    if (isAway) return refusal(503)
    const isBack = time.now >= outageMs
    if (!isWatch) {
      // A list of one object only compares versions. A full list follows where the history is gone.
      const isComparison = request.query?.['limit'] === '1'
      const counts = !isComparison || back === 'watches go on'
      if (isBack && counts) asked.push(time.now - outageMs)
      return { ok: true, what: 'answer', body: list() }
    }
    const version = Number(request.query['resourceVersion'])
    if (isBack && back === 'all must list again' && version < 2) return refusal(410)
    return { ok: true, what: 'answer', body: silence(isBack ? aborted(signal) : time.sleep(1)) }

    async function* list() {
      yield await Promise.resolve(
        Buffer.from(`{"metadata":{"resourceVersion":"${isBack ? 2 : 1}"},"items":[]}`),
      )
    }
  }
}

/** A watch without events, until it breaks. */
async function* silence(end: Promise<void>): AsyncIterable<Buffer> {
  await end
  yield* []
}

function refusal(status: number): ApiAnswer {
  return { ok: false, status, message: 'simulated', retryAfterMs: 0 }
}

/** Simulated time. It jumps to the next event as soon as everybody waits. */
class PassingTime {
  now = 0
  readonly #sleepers: { readonly at: number; readonly wake: () => void }[] = []

  sleep(ms: number): Promise<void> {
    return new Promise((wake) => this.#sleepers.push({ at: this.now + ms, wake }))
  }

  async pass(until: number): Promise<void> {
    for (;;) {
      await new Promise((resolve) => setImmediate(resolve))
      const next = this.#sleepers.reduce((least, { at }) => Math.min(least, at), Infinity)
      if (next > until) break
      this.now = Math.max(this.now, next)
      this.#wake(({ at }) => at <= next)
    }
    this.now = until
  }

  wakeAll(): void {
    this.#wake(() => true)
  }

  #wake(isDue: (sleeper: { readonly at: number }) => boolean): void {
    const due = this.#sleepers.filter(isDue)
    const left = this.#sleepers.filter((sleeper) => !isDue(sleeper))
    this.#sleepers.splice(0, Infinity, ...left)
    for (const { wake } of due) wake()
  }
}

function mostWithin(sorted: readonly number[], ms: number): number {
  let most = 0
  for (let from = 0, to = 0; to < sorted.length; to++) {
    while ((sorted[to] ?? 0) - (sorted[from] ?? 0) >= ms) from++
    most = Math.max(most, to - from + 1)
  }
  return most
}
