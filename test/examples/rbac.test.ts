import { readFile, rm } from 'node:fs/promises'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { parseAllDocuments } from 'yaml'
import { createApiServer } from '../../lib/lab/apiserver/server.js'
import { runProxy } from '../../lib/lab/playground/proxy-process.js'
import { openBridge } from '../../lib/lab/world/bridge.js'
import { addressOf } from '../../lib/lab/world/topology.js'
import { nftables, skip, stopping, until, withProxyWorld } from '../e2e/proxy-world.js'

const file = fileURLToPath(new URL('../../../examples/kubernetes/base/rbac.yaml', import.meta.url))

/** `list services`, as a set, the group before the resource where it has one. */
async function granted(): Promise<readonly string[]> {
  const [role] = parseAllDocuments(await readFile(file, 'utf8')).map(
    (document) =>
      document.toJS() as {
        readonly rules: readonly {
          readonly apiGroups: readonly string[]
          readonly resources: readonly string[]
          readonly verbs: readonly string[]
        }[]
      },
  )
  return (role?.rules ?? [])
    .flatMap(({ apiGroups, resources, verbs }) =>
      apiGroups.flatMap((group) =>
        resources.flatMap((resource) => verbs.map((verb) => right(verb, group, resource))),
      ),
    )
    .sort()
}

const right = (verb: string, group: string, resource: string) =>
  `${verb} ${group === '' ? '' : `${group}/`}${resource}`

const busyPort = 32_000

/** The right that an API server asks for before it answers this request. */
function needed({ method = '', url = '' }: IncomingMessage): string {
  const { pathname, searchParams } = new URL(url, 'http://api')
  const [, group, resource, name] =
    /^(?:\/api\/v1|\/apis\/([^/]+)\/[^/]+)\/(?:namespaces\/[^/]+\/)?([^/]+)(\/[^/]+)?$/.exec(
      pathname,
    ) ?? []
  const verbs: Readonly<Record<string, string>> = {
    POST: 'create',
    PUT: 'update',
    PATCH: 'patch',
    DELETE: 'delete',
  }
  const read = name !== undefined ? 'get' : searchParams.get('watch') === 'true' ? 'watch' : 'list'
  return right(verbs[method] ?? read, group ?? '', resource ?? pathname)
}

t.test('RB01: the ClusterRole grants what the daemon asks for, and nothing else', { skip }, (t) =>
  withProxyWorld('rbac', async ({ world }) => {
    const api = createApiServer()
    const stop = new AbortController()
    const running = api.run(stop.signal)
    const url = await api.listening()
    const asked = new Set<string>()
    const recorder = createServer((incoming: IncomingMessage, answer: ServerResponse) => {
      asked.add(needed(incoming))
      const { method, headers } = incoming
      const outgoing = request(url + (incoming.url ?? '/'), { method, headers }, (reply) => {
        answer.writeHead(reply.statusCode ?? 500, reply.headers)
        reply.pipe(answer)
      })
      outgoing.on('error', () => answer.destroy())
      incoming.pipe(outgoing)
    })
    const path = join(tmpdir(), `rbac-${process.pid}.sock`)
    recorder.listen(path)
    await once(recorder, 'listening')
    const namespace = world.namespaces.node
    const bridge = await openBridge({ namespace, from: { port: 6443 }, to: { path } })
    try {
      api.put({
        apiVersion: 'v1',
        kind: 'Node',
        metadata: { name: 'node-1' },
        status: { addresses: [{ type: 'InternalIP', address: addressOf('node', 'IPv4') }] },
      })
      // The node's own server holds its health-check port: an Event reports that.
      await world.agent('node').serve({
        name: 'node',
        addresses: [addressOf('node', 'IPv4')],
        ports: [busyPort],
        protocols: ['TCP'],
      })
      api.put({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name: 'busy' },
        spec: {
          type: 'LoadBalancer',
          externalTrafficPolicy: 'Local',
          healthCheckNodePort: busyPort,
          ports: [{ port: 80 }],
        },
      })
      const proxy = runProxy(world, [...nftables, '--master', 'http://127.0.0.1:6443'])
      await stopping(proxy, async () => {
        const events = () => api.list({ apiVersion: 'events.k8s.io/v1', kind: 'Event' })
        await until('an Event about the Service', () =>
          events().some((event) => JSON.stringify(event).includes('busy')),
        )
        const kindsOf = (verb: string) => [...asked].filter((of) => of.startsWith(verb)).length
        await until('all watches', () => kindsOf('watch') >= 4 && api.faults.watches.size === 4)
        // After a failure the daemon asks which version the server is at, by a list.
        api.faults.failWatches(500)
        await until('all lists', () => kindsOf('list') >= 4)
        t.same([...asked].sort(), await granted())
      })
    } finally {
      await bridge.close()
      recorder.closeAllConnections()
      recorder.close()
      stop.abort()
      await running
      await rm(path, { force: true })
    }
  }),
)
