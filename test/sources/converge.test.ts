import { setTimeout as delay } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import { createFaultyApi, type FaultyApi } from '../support/faulty-api.js'
import { ApiClient } from '../../lib/sources/api-client.js'
import { apiServerSource } from '../../lib/sources/api-server.js'
import { openCluster } from '../../lib/sources/cluster-access.js'
import type { ObjectKind, ObjectSink } from '../../lib/sources/source.js'
import { identityOf } from '../../lib/state/parse-object.js'
import { untilTrue } from '../support/until.js'

/** A sink that keeps the name and version of each Service. */
class Mirror implements ObjectSink {
  readonly services = new Map<string, string>()
  /** Removals of objects that were still there (R01). */
  readonly mistakes: string[] = []
  readonly #api: FaultyApi

  constructor(api: FaultyApi) {
    this.#api = api
  }

  upsert(kind: ObjectKind, raw: unknown): void {
    if (kind !== 'Service') return
    const { resourceVersion } = (raw as { metadata: { resourceVersion: string } }).metadata
    this.services.set(identityOf(raw).name, resourceVersion)
  }

  remove(kind: ObjectKind, _namespace: string, name: string): void {
    if (kind !== 'Service') return
    this.services.delete(name)
    // The runs below never delete objects with such a name.
    if (name.startsWith('stays') && contentOf(this.#api).has(name)) this.mistakes.push(name)
  }

  synced(): void {
    // Only the content is compared.
  }

  failed(): void {
    // Failures are expected in this test.
  }
}

function contentOf(api: FaultyApi): ReadonlyMap<string, string> {
  const all = api.list({ apiVersion: 'v1', kind: 'Service' })
  return new Map(all.map(({ metadata }) => [metadata.name, metadata.resourceVersion ?? '']))
}

const names = ['a', 'b', 'c', 'd', 'stays-1', 'stays-2', 'stays-3']

type Step = (api: FaultyApi) => void

const write = fc.tuple(fc.constantFrom(...names), fc.integer({ min: 1, max: 65_535 })).map(
  ([name, port]): Step =>
    (api) =>
      void api.put({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name },
        spec: { ports: [{ port }] },
      }),
)
const remove = fc.constantFrom('a', 'b', 'c', 'd').map(
  (name): Step =>
    (api) =>
      void api.remove({ apiVersion: 'v1', kind: 'Service', name }),
)
const disturb = fc.constantFrom<Step>(
  (api) => api.faults.dropWatches(),
  (api) => api.faults.cutWatches(),
  (api) => api.faults.failWatches(410),
  (api) => api.faults.failWatches(500),
  (api) => api.faults.compact(),
  (api) => api.faults.restart(),
)
const fault = fc
  .record({
    verbs: fc.constantFrom<('list' | 'watch')[]>(['list'], ['watch'], ['list', 'watch']),
    effect: fc.constantFrom(
      { answer: 410 as const },
      { answer: 429 as const },
      { answer: 500 as const },
      { cut: true as const },
      { hang: true as const },
      { drip: { bytes: 7, everyMs: 1 } },
    ),
    times: fc.integer({ min: 1, max: 3 }),
  })
  .map(
    (given): Step =>
      (api) =>
        void api.faults.inject(given),
  )

const steps = fc.array(
  fc.oneof(
    { weight: 5, arbitrary: write },
    { weight: 2, arbitrary: remove },
    { weight: 2, arbitrary: disturb },
    { weight: 2, arbitrary: fault },
    // `undefined` is a pause, in which the source can go on.
    { weight: 3, arbitrary: fc.constant(undefined) },
  ),
  { minLength: 10, maxLength: 40 },
)

async function converges(given: readonly (Step | undefined)[]): Promise<readonly string[]> {
  const api = createFaultyApi({ runtime: undefined })
  const controller = new AbortController()
  const running = api.run(controller.signal)
  const access = await openCluster({ kubeconfig: '', master: await api.listening() })
  const mirror = new Mirror(api)
  const following = new AbortController()
  const source = apiServerSource({
    client: new ApiClient(access, 'test'),
    nodeName: 'n',
    timing: {
      pageSize: 2,
      headTimeoutMs: 100,
      idleTimeoutMs: 400,
      pageTimeoutMs: 300,
      firstRetryMs: 1,
      longestConnectRetryMs: 10,
      longestErrorRetryMs: 10,
    },
  }).run(mirror, following.signal)
  for (const step of given) {
    if (step === undefined) await delay(8)
    else step(api)
  }
  api.faults.clear()
  const wanted = () => JSON.stringify([...contentOf(api)].sort())
  await untilTrue(() => JSON.stringify([...mirror.services].sort()) === wanted())
  following.abort()
  await source
  controller.abort()
  await running
  return mirror.mistakes
}

void t.test('R01: after any failures the sink has the objects of the server', async (t) => {
  await fc.assert(
    fc.asyncProperty(steps, async (given) => (await converges(given)).length === 0),
    { numRuns: 25, endOnFailure: true },
  )
  t.pass('25 runs')
})
