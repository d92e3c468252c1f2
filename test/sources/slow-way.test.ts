import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import t, { type Test } from 'tap'
import { ApiClient } from '../../lib/sources/api-client.js'
import { apiServerSource } from '../../lib/sources/api-server.js'
import { openCluster } from '../../lib/sources/cluster-access.js'
import type { ListWatchTiming } from '../../lib/sources/list-watch-timing.js'
import type { ObjectRequests } from '../../lib/sources/object-requests.js'
import { PagedList } from '../../lib/sources/paged-list.js'
import { identityOf } from '../../lib/state/parse-object.js'
import { event, listOf, service } from './support/scripted-server.js'
import { untilTrue } from '../support/until.js'

/** So many objects come through before the way is cut. */
const mostAtOnce = 6

const all = Array.from({ length: 40 }, (_, index) => `s${index}`)

/** The limit and the first object of each list that was asked for; a watch has the limit 0. */
interface Asked {
  readonly limit: number
  readonly first: number
}

/** Follows 40 Services on a way that never lets more than a few through at once. */
async function follow(
  t: Test,
  options: {
    readonly cut: (answer: ServerResponse, text: string) => void
    readonly isStreamed: boolean
    /** The number of the request that gets no answer; from 1. */
    readonly lostRequest?: number
    readonly timing?: Partial<ListWatchTiming>
  },
) {
  const [asked, failures, names]: [Asked[], string[], Set<string>] = [[], [], new Set()]
  const server = createServer((request, answer) => {
    const { pathname, searchParams } = new URL(request.url ?? '/', 'http://x')
    if (searchParams.has('resourceVersion')) answer.flushHeaders()
    else if (pathname !== '/api/v1/services') answer.end(listOf('1'))
    else {
      const limit = Number(searchParams.get('limit') ?? 0)
      const first = Number(searchParams.get('continue') ?? 0)
      asked.push({ limit, first })
      if (asked.length === options.lostRequest) {
        request.destroy()
        return
      }
      const page = all.slice(first, first + limit)
      const next = first + limit
      const metadata = { resourceVersion: '5', ...(next < 40 ? { continue: String(next) } : {}) }
      const items = page.map((name) => service(name, '5'))
      if (limit === 0) {
        options.cut(
          answer,
          all
            .slice(0, mostAtOnce)
            .map((name) => event('ADDED', name, '5'))
            .join(''),
        )
      } else if (limit > mostAtOnce) options.cut(answer, '{"items":[')
      else answer.end(JSON.stringify({ metadata, items }))
    }
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const master = `127.0.0.1:${(server.address() as AddressInfo).port}`
  const stop = new AbortController()
  let isSynced = false
  const running = apiServerSource({
    client: new ApiClient(await openCluster({ kubeconfig: '', master }), 'test'),
    nodeName: 'n',
    isStreamed: options.isStreamed,
    timing: { pageSize: 20, firstRetryMs: 5, longestConnectRetryMs: 10, ...options.timing },
  }).run(
    {
      upsert: (kind, raw) => kind === 'Service' && names.add(identityOf(raw).name),
      remove: (_kind, _namespace, name) => names.delete(name),
      synced: (kind) => (isSynced ||= kind === 'Service'),
      failed: (text) => failures.push(text),
    },
    stop.signal,
  )
  t.teardown(async () => {
    stop.abort()
    await running
    server.close().closeAllConnections()
  })
  await untilTrue(() => isSynced)
  t.equal(names.size, 40)
  return { asked, failures: failures.filter((text) => text.includes('/services')) }
}

/** 20 and 10 objects do not come through. Then each page of 5 follows the one before. */
const pages = [20, 10, 5, 5, 5, 5, 5, 5, 5, 5]
const firsts = [0, 0, 0, 5, 10, 15, 20, 25, 30, 35]

void t.test(
  'a way that is cut in the middle of all objects gets them in small pages',
  async (t) => {
    const cut = (answer: ServerResponse, text: string) => {
      answer.write(text, () => setImmediate(() => answer.destroy()))
    }
    const { asked } = await follow(t, { cut, isStreamed: true })
    t.strictSame(
      asked.filter(({ limit }) => limit === 0).length,
      2,
      'two watches try to bring all objects',
    )
    t.strictSame(
      asked.slice(2).map(({ limit }) => limit),
      pages,
    )
    t.strictSame(
      asked.slice(2).map(({ first }) => first),
      firsts,
    )
  },
)

void t.test('a page that takes too long is asked for again with fewer objects', async (t) => {
  const cut = (answer: ServerResponse, text: string) => {
    answer.write(text)
    const drops = setInterval(() => answer.write(' '), 20)
    answer.once('close', () => clearInterval(drops))
  }
  const timing = { pageTimeoutMs: 3000 }
  const { asked, failures } = await follow(t, { cut, isStreamed: false, timing })
  const limits = asked.map(({ limit }) => limit)
  t.strictSame(limits.slice(0, 3), [20, 10, 5])
  // On a busy machine these may be too slow, too.
  t.ok(limits.slice(3).every((limit) => limit <= 5 && limit > 0))
  t.match(
    failures[0],
    /no complete answer for 3000 ms; it was still coming, so the way .* is slow$/,
  )
})

void t.test('a list goes on after a page that got no answer at all', async (t) => {
  const cut = (answer: ServerResponse) => answer.destroy()
  const { asked } = await follow(t, {
    cut,
    isStreamed: false,
    lostRequest: 3,
    timing: { pageSize: mostAtOnce },
  })
  t.strictSame(
    asked.map(({ first }) => first),
    [0, 6, 12, 12, 18, 24, 30, 36],
  )
})

void t.test(
  'a list that has begun is not gone on with when all objects came otherwise',
  async (t) => {
    const asked: (string | undefined)[] = []
    const requests: Pick<ObjectRequests, 'list'> = {
      list: (_signal, query) => {
        asked.push(query['continue'])
        if (query['continue'] !== undefined) return Promise.reject(new Error('cut'))
        const text = JSON.stringify({
          metadata: { resourceVersion: '5', continue: 'x' },
          items: [],
        })
        return Promise.resolve({ ok: true, what: 'it', body: Readable.from([Buffer.from(text)]) })
      },
    }
    const list = new PagedList('/x', requests, 10)
    const read = () => list.read(new AbortController().signal, () => undefined)
    await t.rejects(read(), /cut/)
    await t.rejects(read(), /cut/)
    list.beginAnew()
    await t.rejects(read(), /cut/)
    t.strictSame(asked, [undefined, 'x', 'x', undefined, 'x'])
  },
)
