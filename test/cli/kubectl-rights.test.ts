import { createServer } from 'node:http'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { grantsIn, guardedServer, rightText, type Right } from '../support/rights.js'
import { installPlugin, pluginThread, putProxy } from './support/plugin.js'
import { askAll, type RemoteProxy } from '../../lib/cli/kubectl/proxies.js'
import { SourceError } from '../../lib/errors.js'
import { noKubectl, startServer } from '../lab/apiserver/support/kubectl.js'

/** The plug-in with an API server that grants only what examples/kubectl/role.yaml says. */

const file = fileURLToPath(new URL('../../../examples/kubectl/role.yaml', import.meta.url))
/** Every user has this right from system:discovery: kubectl asks the version of the server. */
const ofEverybody: Right = { verb: 'get', resource: '/version', namespace: undefined }
const [ofRole, ofBoth] = [grantsIn(file, ['Role']), grantsIn(file)]

const kubeProxyConfig = {
  apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
  kind: 'KubeProxyConfiguration',
  mode: 'nftables',
  clusterCIDR: '10.244.0.0/16',
}
const flow = {
  ...{ time: '2026-01-01T00:00:00.000Z', event: 'opened', verdict: 'forwarded', why: '' },
  ...{ protocol: 'TCP', client: '10.244.1.7:4000', clientPod: '', address: '10.96.0.10:80' },
  ...{ service: 'default/web:http', endpoint: '10.244.1.1:8080', endpointPod: '' },
}
const pages: Readonly<Record<string, string>> = {
  '/configz': JSON.stringify({ 'kubeproxy.config.k8s.io': kubeProxyConfig }),
  '/proxyMode': 'nftables',
  '/healthz': '[+]mode: nftables\n',
  '/metrics': 'kubeproxy_service_connections_total{service="default/web:http",endpoint="x"} 1\n',
  '/flows': JSON.stringify({ flows: [flow], next: 1, leftOut: 0 }),
  '/failing-endpoints': '[]',
}

/** A cluster with one proxy, a Service and a client, behind an API server with these grants. */
async function cluster(t: Test, grants: readonly Right[]) {
  const proxy = createServer((request, reply) => {
    const page = pages[(request.url ?? '').split('?', 1)[0] ?? '']
    reply.writeHead(page === undefined ? 404 : 200).end(page)
  })
  const open = await startServer({ proxiesToLoopback: true })
  const { server, used, refused } = guardedServer(open.url, [...grants, ofEverybody])
  const ports = []
  for (const listening of [proxy, server]) {
    listening.listen(0, '127.0.0.1')
    await once(listening, 'listening')
    const address = listening.address()
    if (typeof address === 'object' && address) ports.push(address.port)
    t.teardown(() => listening.close())
  }
  t.teardown(() => open.stop())
  const [port, guarded] = ports
  putProxy(open.api, 'node-1', '127.0.0.1')
  const metadata = { name: 'web', namespace: 'default' }
  const spec = { clusterIP: '10.96.0.10', clusterIPs: ['10.96.0.10'], ports: [{ port: 80 }] }
  open.api.put({ apiVersion: 'v1', kind: 'Service', metadata, spec })
  open.api.put({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { ...metadata, name: 'client' },
    spec: { nodeName: 'node-1', containers: [{ name: 'client', image: 'x' }] },
    status: { podIP: '10.244.1.7' },
  })
  const config = readFileSync(open.kubeconfig, 'utf8')
  writeFileSync(open.kubeconfig, config.replace(open.url, `http://127.0.0.1:${guarded}`))
  installPlugin(t, open.kubeconfig)
  const run = (command: string) => pluginThread(...command.split(' '), `--port=${port}`)
  const usedOfOurs = () => [...used].filter((right) => right !== ofEverybody).map(rightText)
  return { run, usedOfOurs, refused }
}

const proxyOf = (node: string): RemoteProxy => ({
  ...{ node, pod: `proxy-${node}`, namespace: 'kube-system', name: node },
  get: () => Promise.resolve(''),
})

const always = ['top -A', 'flows', 'trace svc/web', 'check', 'diff']
const withClusterRole = ['explain svc/web', 'flows svc/web --from pod/client']

void t.test('the Role is enough for most commands', { skip: noKubectl }, async (t) => {
  const { run, usedOfOurs, refused } = await cluster(t, ofRole)
  for (const command of always) t.match(await run(command), { code: 0 }, command)
  t.same([...refused], [])
  t.same(usedOfOurs().sort(), ofRole.map(rightText).sort(), 'each right is needed')
  for (const command of withClusterRole) {
    t.match(await run(command), { code: 1, stderr: /forbidden.*; \S+role\.yaml has/i }, command)
  }
})

void t.test('without the right, some proxies are asked, and one refusal is shown', async (t) => {
  const proxies = Array.from({ length: 40 }, (_, n) => proxyOf(`node-${n}`))
  let asks = 0
  const refused = await askAll(proxies, ({ pod }) => {
    asks++
    return Promise.reject(new SourceError(`Error from server (Forbidden): pods "${pod}"`))
  })
  t.match(refused, [{ proxy: { node: 'node-0' }, error: /Forbidden/ }])
  t.equal(refused.length, 1)
  t.ok(asks < proxies.length, `${asks} asks`)
  const failed = await askAll(proxies, () => Promise.reject(new SourceError('connection refused')))
  t.equal(failed.length, proxies.length, 'a node that does not answer tells nothing of others')
})

void t.test('with the ClusterRole all of them run', { skip: noKubectl }, async (t) => {
  const { run, usedOfOurs, refused } = await cluster(t, ofBoth)
  for (const command of [...always, ...withClusterRole])
    t.match(await run(command), { code: 0 }, command)
  t.same([...refused], [])
  t.same(usedOfOurs().sort(), ofBoth.map(rightText).sort(), 'each right is needed')
})
