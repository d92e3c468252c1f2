import {
  CoreV1Api,
  KubeConfig,
  makeInformer,
  PatchStrategy,
  setHeaderOptions,
} from '@kubernetes/client-node'
import t from 'tap'
import { startServer } from './support/kubectl.js'
import { until } from '../../support/until.js'

void t.test("@kubernetes/client-node's informers and typed calls work unmodified", async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const config = new KubeConfig()
  config.loadFromFile(server.kubeconfig)
  const core = config.makeApiClient(CoreV1Api)
  const seen: string[] = []
  const waitFor = (what: string, isSo: () => boolean) =>
    until(() => `${what}, but ${seen.join(', ')}`, isSo, 5)
  const untilSeen = (event: string) => waitFor(event, () => seen.includes(event))
  const list = () => core.listServiceForAllNamespaces()
  const informer = makeInformer(config, '/api/v1/services', list)
  informer.on('add', (service) => seen.push(`add ${service.metadata?.name ?? ''}`))
  informer.on('update', (service) => seen.push(`update ${service.metadata?.name ?? ''}`))
  informer.on('delete', (service) => seen.push(`delete ${service.metadata?.name ?? ''}`))
  // The informer ends with every error, and its user starts it again.
  let isOver = false
  informer.on('error', (error) => {
    seen.push(`error ${String(error)}`)
    if (!isOver) setTimeout(() => void informer.start(), 50)
  })
  const spec = { ports: [{ port: 80 }] }
  const namespace = 'default'
  await core.createNamespacedService({ namespace, body: { metadata: { name: 'a' }, spec } })
  await informer.start()
  t.teardown(() => {
    isOver = true
    return informer.stop()
  })
  await untilSeen('add a')

  const created = await core.createNamespacedService({
    namespace,
    body: { metadata: { generateName: 'b-' }, spec },
  })
  const name = created.metadata?.name ?? ''
  t.match(name, /^b-[a-z0-9]{5}$/)
  t.match(created.spec, { clusterIP: /^10\.96\./, type: 'ClusterIP', sessionAffinity: 'None' })
  await untilSeen(`add ${name}`)

  await core.patchNamespacedService(
    { name, namespace, body: { metadata: { labels: { x: 'y' } } } },
    setHeaderOptions('Content-Type', PatchStrategy.MergePatch),
  )
  await untilSeen(`update ${name}`)

  // Optimistic concurrency: the version from the creation is old now.
  await t.rejects(core.replaceNamespacedService({ name, namespace, body: created }), { code: 409 })
  await core.deleteNamespacedService({ name, namespace })
  await untilSeen(`delete ${name}`)

  // It lists again after a 410, which is the answer for an expired version.
  server.api.faults.compact()
  server.api.faults.failWatches(410)
  await core.createNamespacedService({ namespace, body: { metadata: { name: 'c' }, spec } })
  await untilSeen('add c')
  t.equal(informer.list().length, 2)
  // The informer was stopped between a list and its watch, and begins the watch nevertheless.
  await waitFor('watch', () => server.api.faults.watches.size > 0)
})
