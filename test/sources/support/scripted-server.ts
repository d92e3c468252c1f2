import { createServer, type ServerResponse } from 'node:http'
import type { Test } from 'tap'
import { ApiClient } from '../../../lib/sources/api-client.js'
import { apiServerSource } from '../../../lib/sources/api-server.js'
import { openCluster } from '../../../lib/sources/cluster-access.js'
import type { ListWatchTiming } from '../../../lib/sources/list-watch-timing.js'
import type { ObjectKind } from '../../../lib/sources/source.js'
import { identityOf } from '../../../lib/state/parse-object.js'

/** The answers of the server about Services. The other kinds are empty and quiet. */
export interface Script {
  /** The text of a list; `number` counts from 1. */
  list(number: number, answer: ServerResponse): string
  /** Answers a watch from the version that the client asks for. */
  watch(answer: ServerResponse, version: string, number: number): void
}

export interface Followed {
  readonly names: Set<string>
  /** The names of all Services that were removed. */
  readonly removed: readonly string[]
  readonly failures: readonly string[]
  /** The time of each list request for Services, in ms. */
  readonly lists: readonly number[]
  readonly watches: readonly string[]
  /** Requests for anything but lists and watches. */
  readonly others: readonly string[]
  readonly synced: () => number
}

export const service = (name: string, version: string) => ({
  metadata: { name, namespace: 'x', resourceVersion: version },
  spec: { clusterIP: '10.96.0.1', ports: [{ port: 80 }] },
})

export const listOf = (version: string, ...names: readonly string[]) =>
  JSON.stringify({
    metadata: { resourceVersion: version },
    items: names.map((name) => service(name, version)),
  })

export const event = (type: string, name: string, version: string) =>
  `${JSON.stringify({ type, object: service(name, version) })}\n`

/** Follows a server that answers by the script, until the test ends. */
export async function follow(
  t: Test,
  script: Script,
  timing: Partial<ListWatchTiming> = {},
  isStreamed = false,
): Promise<Followed> {
  const names = new Set<string>()
  const [failures, lists, watches, others]: [string[], number[], string[], string[]] = [
    [],
    [],
    [],
    [],
  ]
  const removed: string[] = []
  const server = createServer((request, answer) => {
    const url = new URL(request.url ?? '/', 'http://x')
    const isServices = url.pathname === '/api/v1/services'
    if (url.searchParams.has('watch')) {
      if (!isServices) {
        answer.flushHeaders()
        return
      }
      const version = url.searchParams.get('resourceVersion') ?? ''
      watches.push(version)
      script.watch(answer, version, watches.length)
    } else if (!isServices) {
      if (!url.searchParams.has('limit')) others.push(url.pathname)
      answer.end(listOf('1'))
    } else {
      lists.push(performance.now())
      answer.end(script.list(lists.length, answer))
    }
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  let synced = 0
  const stop = new AbortController()
  const running = apiServerSource({
    client: new ApiClient(
      await openCluster({ kubeconfig: '', master: `http://127.0.0.1:${port}` }),
      'test',
    ),
    nodeName: 'n',
    isStreamed,
    timing: { firstRetryMs: 10, longestConnectRetryMs: 40, longestErrorRetryMs: 40, ...timing },
  }).run(
    {
      upsert(kind: ObjectKind, raw) {
        if (kind === 'Service') names.add(identityOf(raw).name)
      },
      remove(kind, _namespace, name) {
        if (kind !== 'Service') return
        names.delete(name)
        removed.push(name)
      },
      synced(kind) {
        if (kind === 'Service') synced++
      },
      failed(message) {
        failures.push(message)
      },
    },
    stop.signal,
  )
  t.teardown(async () => {
    stop.abort()
    await running
    server.close()
    server.closeAllConnections()
  })
  return { names, removed, failures, lists, watches, others, synced: () => synced }
}
