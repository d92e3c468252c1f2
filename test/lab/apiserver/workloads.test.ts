import { spawn } from 'node:child_process'
import { getEventListeners } from 'node:events'
import t from 'tap'
import {
  at,
  listAt,
  numberAt,
  textAt,
  textsAt,
  type JsonObject,
} from '../../../lib/lab/apiserver/json.js'
import type { KubeObject } from '../../../lib/lab/apiserver/object.js'
import type { PodLife } from '../../../lib/lab/apiserver/controllers/pod-runtime.js'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { noKubectl, startServer, type TestServer } from './support/kubectl.js'
import { untilTrue } from '../../support/until.js'

const manifests = `
apiVersion: v1
kind: Node
metadata: { name: n1, labels: { topology.kubernetes.io/zone: za } }
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  selector: { app: web }
  trafficDistribution: PreferClose
  ports: [{ port: 80, targetPort: http }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec: { containers: [{ name: web, image: web:1, ports: [{ name: http, containerPort: 8080 }] }] }
`

const slices = { apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice' }
const pods = { apiVersion: 'v1', kind: 'Pod' }

function endpoints({ api }: TestServer): readonly (KubeObject | Record<string, never>)[] {
  return api.list(slices).flatMap((slice) => listAt(slice, 'endpoints') as KubeObject[])
}

function readyAddresses(server: TestServer): readonly string[] {
  return endpoints(server)
    .filter((endpoint) => at(endpoint, 'conditions', 'ready') === true)
    .flatMap((endpoint) => textsAt(endpoint, 'addresses'))
    .sort()
}

void t.test('however many controllers there are, the signal has few listeners', async (t) => {
  const api = createApiServer()
  const stop = new AbortController()
  const running = api.control(stop.signal)
  // Node warns of a leak at the eleventh listener, and the program that starts the server adds
  // some.
  const { length } = getEventListeners(stop.signal, 'abort')
  t.ok(length <= 2, `${length} listeners`)
  stop.abort()
  await running
})

void t.test(
  'controllers act on the objects that kubectl writes',
  { skip: noKubectl },
  async (t) => {
    const server = await startServer()
    t.teardown(() => server.stop())
    await server.ok('apply -f -', manifests)

    await t.test('a Deployment becomes pods, and its Service finds them', async (t) => {
      await server.ok('rollout status deployment/web --timeout=300s')
      t.equal(server.api.list(pods).length, 2)
      await untilTrue(() => readyAddresses(server).length === 2)
      const [slice] = server.api.list(slices)
      t.match(slice, {
        addressType: 'IPv4',
        ports: [{ name: '', port: 8080, protocol: 'TCP' }],
        metadata: {
          labels: { 'kubernetes.io/service-name': 'web' },
          annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': /^\d{4}-/ },
        },
      })
      t.match(endpoints(server)[0], {
        conditions: { ready: true, serving: true, terminating: false },
        nodeName: 'n1',
        zone: 'za',
        hints: { forZones: [{ name: 'za' }] },
        targetRef: { kind: 'Pod', name: /^web-/ },
      })
      t.match(await server.ok('get deployment web'), /web +2\/2 +2 +2 /)
      const described = /Endpoints: +(\S+)/.exec(await server.ok('describe svc web'))?.[1] ?? ''
      const all = readyAddresses(server).map((address) => `${address}:8080`)
      t.strictSame(described.split(',').sort(), all)
    })

    await t.test('scale changes the number of endpoints, in both directions', async () => {
      await server.ok('scale deployment/web --replicas=4')
      await untilTrue(() => readyAddresses(server).length === 4)
      await server.ok('scale deployment/web --replicas=1')
      await untilTrue(() => endpoints(server).length === 1 && server.api.list(pods).length === 1)
    })

    await t.test('a new image replaces the pods, while some are always ready', async (t) => {
      await server.ok('scale deployment/web --replicas=3')
      await untilTrue(() => readyAddresses(server).length === 3)
      let fewest = Infinity
      const stop = server.api.registry.store.subscribe('endpointslices.discovery.k8s.io', () => {
        fewest = Math.min(fewest, readyAddresses(server).length)
      })
      await server.ok('set image deployment/web web=web:2')
      await server.ok('rollout status deployment/web --timeout=300s')
      stop()
      t.ok(fewest >= 3, `never fewer than 3 ready, saw ${fewest}`)
      await untilTrue(() => server.api.list(pods).length === 3)
      const images = server.api
        .list(pods)
        .map((pod) => textAt(listAt(pod, 'spec', 'containers')[0], 'image'))
      t.strictSame(images, ['web:2', 'web:2', 'web:2'])
    })

    await t.test(
      'a paused Deployment is scaled, and its pods are replaced when it goes on',
      async (t) => {
        const images = () =>
          server.api
            .list(pods)
            .map((pod) => textAt(listAt(pod, 'spec', 'containers')[0], 'image'))
            .toSorted()
        await server.ok('rollout pause deployment/web')
        await server.ok('set image deployment/web web=web:3')
        await server.ok('scale deployment/web --replicas=2')
        await untilTrue(
          () => server.api.list(pods).length === 2 && readyAddresses(server).length === 2,
        )
        t.strictSame(images(), ['web:2', 'web:2'])
        t.match(await server.ok('get deployment web'), /web +2\/2 +0 +2 /, 'none is up to date')
        await server.ok('rollout resume deployment/web')
        await server.ok('rollout status deployment/web --timeout=300s')
        await untilTrue(() => server.api.list(pods).length === 2)
        t.strictSame(images(), ['web:3', 'web:3'])
        await server.ok('scale deployment/web --replicas=3')
        await untilTrue(() => readyAddresses(server).length === 3)
      },
    )

    await t.test('a deleted pod is first terminating, then replaced', async (t) => {
      const [pod] = server.api.list(pods)
      let wasTerminating = false
      const stop = server.api.registry.store.subscribe('endpointslices.discovery.k8s.io', () => {
        wasTerminating ||= endpoints(server).some(
          (each) =>
            textAt(each, 'targetRef', 'name') === pod?.metadata.name &&
            at(each, 'conditions', 'terminating') === true &&
            at(each, 'conditions', 'ready') === false,
        )
      })
      await server.ok(`delete pod ${pod?.metadata.name ?? ''}`)
      stop()
      t.ok(wasTerminating)
      t.notOk(server.api.list(pods).some((each) => each.metadata.name === pod?.metadata.name))
      await untilTrue(() => readyAddresses(server).length === 3)
    })

    await t.test('label takes a pod out of the Service, and another replaces it', async () => {
      const [pod] = server.api.list(pods)
      const ready = readyAddresses(server).length
      await server.ok(`label pod ${pod?.metadata.name ?? ''} app=other --overwrite`)
      await untilTrue(
        () =>
          !endpoints(server).some(
            (each) => textAt(each, 'targetRef', 'name') === pod?.metadata.name,
          ),
      )
      await untilTrue(() => readyAddresses(server).length === ready)
      await server.ok('delete pod -l app=other')
    })

    await t.test('--cascade=orphan leaves what is owned, and a new owner takes it', async (t) => {
      const sets = { apiVersion: 'apps/v1', kind: 'ReplicaSet' }
      const ownersOf = (ref: typeof pods) =>
        server.api.list(ref).map(({ metadata }) => metadata.ownerReferences?.[0])
      const names = () => server.api.list(pods).map(({ metadata }) => metadata.name)
      const before = names()
      const [set] = ownersOf(pods)
      const deployment = await server.ok('get deployment web -o yaml')
      await server.ok('delete deployment web --cascade=orphan')
      await untilTrue(() => ownersOf(sets).every((owner) => owner === undefined))
      await server.ok('apply -f -', deployment.replaceAll(/^ +(resourceVersion|uid):.*\n/gm, ''))
      await untilTrue(() => ownersOf(sets).every((owner) => owner !== undefined))
      // Its Deployment makes another ReplicaSet.
      await server.ok(`delete replicaset ${set?.name ?? ''} --cascade=orphan`)
      await untilTrue(() => ownersOf(pods).every((owner) => owner && owner.uid !== set?.uid))
      t.strictSame(names(), before)
    })

    await t.test('a ReplicaSet alone has one pod, and needs a selector', async (t) => {
      const set = `
apiVersion: apps/v1
kind: ReplicaSet
metadata: { name: alone }
spec:
  selector: { matchLabels: { app: alone } }
  template: { metadata: { labels: { app: alone } }, spec: { containers: [{ name: c, image: i }] } }
`
      await server.ok('create -f -', set)
      const ref = { apiVersion: 'apps/v1', kind: 'ReplicaSet', name: 'alone' }
      await untilTrue(() => numberAt(server.api.get(ref), 'status', 'readyReplicas') === 1)
      t.match(await server.ok('get replicaset alone'), /alone +1 +1 +1 /)
      const { stderr } = await server.kubectl(
        'create -f -',
        set.replace(/ {2}selector.*\n/, '').replace('alone', 'other'),
      )
      t.match(stderr, 'spec.selector: Required value')
      await server.ok('delete replicaset alone')
    })

    await t.test('what has two owners is deleted with the second', async (t) => {
      for (const name of ['one', 'two']) await server.ok(`create configmap ${name}`)
      const configMap = { apiVersion: 'v1', kind: 'ConfigMap' }
      const owner = (name: string) => {
        const { uid = '' } = server.api.get({ ...configMap, name })?.metadata ?? {}
        return { ...configMap, name, uid }
      }
      const ownerReferences = [owner('one'), owner('two')]
      server.api.put({ ...configMap, metadata: { name: 'both', ownerReferences } })
      const both = () => server.api.get({ ...configMap, name: 'both' })
      await server.ok('delete configmap one')
      await untilTrue(() => both()?.metadata.ownerReferences?.length !== 2)
      t.match(both()?.metadata.ownerReferences, [{ name: 'two' }])
      await server.ok('delete configmap two')
      await untilTrue(() => both() === undefined)
    })

    await t.test('the objects that a deleted object owns are deleted', async () => {
      await server.ok('delete deployment web')
      await untilTrue(() => server.api.list(pods).length === 0)
      await server.ok('delete service web')
      await untilTrue(() => server.api.list(slices).length === 0)
    })

    await t.test('a pod without a node waits, and its status says why', async (t) => {
      await server.ok('delete node n1')
      await server.ok('create namespace far')
      await server.ok('run lonely --image=x -n far')
      await untilTrue(() => textAt(server.api.list(pods)[0], 'status', 'phase') === 'Pending')
      t.match(await server.ok('get pod lonely -n far'), 'Pending')
      server.api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'n2' } })
      await untilTrue(() => textAt(server.api.list(pods)[0], 'status', 'phase') === 'Running')
      t.match(await server.ok('get pod lonely -n far -o wide'), /Running .* n2 /)
      const { stderr } = await server.kubectl('delete namespace default')
      t.match(stderr, 'namespaces "default" is forbidden: this namespace may not be deleted')
      await server.ok('delete namespace far')
      t.equal(server.api.list(pods).length, 0)
    })
  },
)

void t.test('a runtime starts pods and decides when they have ended', async (t) => {
  const lives = new Map<string, PodLife & { end: () => void }>()
  const server = await startServer({
    runtime: {
      run: (pod, life) =>
        new Promise((resolve) => lives.set(pod.metadata.name, { ...life, end: resolve })),
    },
  })
  t.teardown(() => server.stop())
  server.api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'n1' } })
  server.api.put({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'web' },
    spec: { selector: { app: 'web' }, ports: [{ port: 80 }], ipFamilyPolicy: 'PreferDualStack' },
  })
  server.api.put({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'p', labels: { app: 'web' } },
    spec: { containers: [{ name: 'c', image: 'i' }] },
  })
  await untilTrue(() => lives.has('p'))
  const life = lives.get('p')!
  t.equal(life.node?.metadata.name, 'n1')
  life.report({ ips: ['10.1.0.9', 'fd00::9'], ready: false })
  await untilTrue(() => endpoints(server).length === 2)
  t.strictSame(readyAddresses(server), [])
  life.report({ ips: ['10.1.0.9', 'fd00::9'], ready: true })
  await untilTrue(() => readyAddresses(server).length === 2)
  t.strictSame(readyAddresses(server), ['10.1.0.9', 'fd00::9'])

  const pod = server.api.registry.resources.byKind('v1', 'Pod')!
  server.api.registry.delete(pod, 'default', 'p')
  await untilTrue(() => life.terminating.aborted)
  t.notOk(life.killed.aborted, 'the grace period has just begun')
  await untilTrue(() => readyAddresses(server).length === 0)
  t.match(endpoints(server)[0], { conditions: { ready: false, serving: true, terminating: true } })
  life.end()
  await untilTrue(() => server.api.list(pods).length === 0)
})

void t.test('a pod in the network of its node has the addresses of the node', async (t) => {
  const server = await startServer()
  const { api } = server
  const put = (kind: string, name: string, more: JsonObject) =>
    api.put({ apiVersion: 'v1', kind, metadata: { name, labels: { app: 'web' } }, ...more })
  const addresses = [
    { type: 'Hostname', address: 'n1' },
    { type: 'ExternalIP', address: '203.0.113.1' },
    { type: 'InternalIP', address: '192.0.2.1' },
    { type: 'InternalIP', address: '192.0.2.2' },
    { type: 'InternalIP', address: '2001:db8::1' },
  ]
  put('Node', 'n1', { status: { addresses } })
  put('Node', 'n2', {})
  put('Service', 'web', {
    spec: { selector: { app: 'web' }, ports: [{ port: 80 }], ipFamilyPolicy: 'PreferDualStack' },
  })
  const onHost = { hostNetwork: true, containers: [{ name: 'c', image: 'i' }] }
  put('Pod', 'p', { spec: { ...onHost, nodeName: 'n1' } })
  put('Pod', 'nowhere', { spec: { ...onHost, nodeName: 'n2' } })
  t.teardown(() => server.stop())
  await untilTrue(() => readyAddresses(server).length === 2)
  t.strictSame(readyAddresses(server), ['192.0.2.1', '2001:db8::1'])
  t.match(api.list(pods).find(({ metadata }) => metadata.name === 'p')?.['status'], {
    hostIP: '192.0.2.1',
    podIP: '192.0.2.1',
    podIPs: [{ ip: '192.0.2.1' }, { ip: '2001:db8::1' }],
  })
  const events = () => api.list({ apiVersion: 'v1', kind: 'Event' })
  await untilTrue(() => events().length > 0)
  t.match(events(), [{ involvedObject: { name: 'nowhere' }, reason: 'HostIPUnknown' }])
})

void t.test('a server restores its own pods after a pause, and leaves others alone', async (t) => {
  const started: string[] = []
  const api = createApiServer({
    runtime: {
      run: async (pod, { report, killed }) => {
        started.push(pod.metadata.name)
        report({ ips: ['10.1.0.1'], ready: true })
        await new Promise((resolve) => killed.addEventListener('abort', resolve))
      },
    },
  })
  const pod = (name: string, status: Record<string, string>) =>
    api.put({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name },
      spec: { nodeName: 'n1', containers: [{ name: 'c', image: 'i' }] },
      status,
    })
  pod('ours', {})
  pod('theirs', { podIP: '10.1.0.2' })
  for (const wanted of [1, 2]) {
    const controller = new AbortController()
    const running = api.run(controller.signal)
    await untilTrue(() => started.length === wanted)
    controller.abort()
    await running
  }
  t.strictSame(started, ['ours', 'ours'])
})

void t.test('only the newest events are kept', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const { api } = server
  for (let index = 0; index < 1100; index++) {
    api.put({
      apiVersion: 'v1',
      kind: 'Event',
      metadata: { name: `e${index}` },
      message: `${index}`,
    })
  }
  const events = () => api.list({ apiVersion: 'v1', kind: 'Event' })
  await untilTrue(() => events().length === 1000)
  t.notOk(events().some((event) => event['message'] === '99'))
  t.ok(events().some((event) => event['message'] === '100'))
})

void t.test('Endpoints are written for selectors, and mirrored if written by hand', async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const { api } = server
  const put = (kind: string, name: string, rest: object) =>
    api.put({ apiVersion: 'v1', kind, metadata: { name, labels: { app: name } }, ...rest })
  put('Node', 'n1', {})
  put('Service', 'web', { spec: { selector: { app: 'web' }, ports: [{ port: 80 }] } })
  put('Pod', 'web', { spec: { containers: [{ name: 'c', image: 'i' }] } })
  const endpointsOf = (name: string) => api.get({ apiVersion: 'v1', kind: 'Endpoints', name })
  await untilTrue(() =>
    listAt(endpointsOf('web'), 'subsets').some((each) => at(each, 'addresses') !== undefined),
  )
  t.match(endpointsOf('web'), {
    subsets: [
      { addresses: [{ ip: /^10\.244\./, targetRef: { name: 'web' } }], ports: [{ port: 80 }] },
    ],
  })

  // An external database usually is a Service without selector, with Endpoints that a person
  // writes.
  put('Service', 'db', { spec: { ports: [{ port: 5432 }] } })
  put('Endpoints', 'db', {
    subsets: [
      { addresses: [{ ip: '192.0.2.7' }, { ip: '2001:db8::7' }], ports: [{ port: 5432 }] },
      { notReadyAddresses: [{ ip: '192.0.2.8' }], ports: [{ port: 5433 }] },
    ],
  })
  const mirrors = () =>
    api
      .list(slices)
      .filter((slice) => slice.metadata.labels?.['kubernetes.io/service-name'] === 'db')
  await untilTrue(() => mirrors().length === 3)
  const facts = mirrors().map((slice) =>
    [
      textAt(slice, 'addressType'),
      numberAt(listAt(slice, 'ports')[0], 'port'),
      textsAt(listAt(slice, 'endpoints')[0], 'addresses').join(),
      at(listAt(slice, 'endpoints')[0], 'conditions', 'ready') === true ? 'ready' : 'unready',
    ].join(' '),
  )
  t.strictSame(facts.sort(), [
    'IPv4 5432 192.0.2.7 ready',
    'IPv4 5433 192.0.2.8 unready',
    'IPv6 5432 2001:db8::7 ready',
  ])
  put('Endpoints', 'db', { subsets: [{ addresses: [{ ip: '192.0.2.9' }], ports: [{ port: 1 }] }] })
  await untilTrue(() => mirrors().length === 1)
  t.match(mirrors(), [{ endpoints: [{ addresses: ['192.0.2.9'] }] }])
  api.remove({ apiVersion: 'v1', kind: 'Endpoints', name: 'db' })
  await untilTrue(() => mirrors().length === 0)

  // Whoever takes the selector away writes the slices from now on. Kubernetes leaves its own.
  const endpointsIn = (name: string) =>
    api
      .list(slices)
      .filter((slice) => slice.metadata.labels?.['kubernetes.io/service-name'] === name)
      .flatMap((slice) => listAt(slice, 'endpoints'))
  put('Service', 'web', { spec: { ports: [{ port: 80 }] } })
  put('Service', 'later', { spec: { selector: { app: 'web' }, ports: [{ port: 80 }] } })
  await untilTrue(() => endpointsIn('later').length === 1)
  t.equal(endpointsIn('web').length, 1)
})

void t.test('get -w prints changes as they come', { skip: noKubectl }, async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const child = spawn('kubectl', [`--kubeconfig=${server.kubeconfig}`, 'get', 'svc', '-w'])
  let seen = ''
  child.stdout.on('data', (chunk: Buffer) => (seen += chunk.toString()))
  const ended = new Promise((resolve) => child.on('close', resolve))
  await untilTrue(() => server.api.faults.watches.size > 0)
  const service = (port: number) =>
    server.api.put({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: 'a' },
      spec: { ports: [{ port }] },
    })
  service(80)
  service(81)
  await untilTrue(() => seen.includes('81/TCP'))
  child.kill('SIGTERM')
  await ended
  const rows = seen.trim().split('\n')
  t.match(rows[0], /^NAME +TYPE +CLUSTER-IP/)
  t.match(rows[1], / 80\/TCP /)
  t.match(rows[2], / 81\/TCP /)
  t.equal(rows.length, 3, 'the head is printed once')
})

void t.test('the server reads the protobuf of kubectl create', { skip: noKubectl }, async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  await server.ok('create namespace shop')
  await server.ok('create deployment d -n shop --image=x:1 --replicas=2 --port=80')
  await server.ok('create service nodeport s --tcp=80:http --node-port=30080')
  await server.ok('create configmap c --from-literal=a=b')
  await server.ok('create secret generic x --from-literal=a=b')
  await server.ok('create serviceaccount proxy')
  await server.ok('create clusterrole system:proxy --verb=list,watch --resource=services')
  await server.ok(
    'create clusterrolebinding b --clusterrole=system:proxy --serviceaccount=default:proxy',
  )
  const get = (apiVersion: string, kind: string, name: string, namespace = 'default') =>
    server.api.get({ apiVersion, kind, name, namespace })
  const deployment = get('apps/v1', 'Deployment', 'd', 'shop')
  t.equal(numberAt(deployment, 'spec', 'replicas'), 2)
  t.match(deployment, {
    spec: {
      selector: { matchLabels: { app: 'd' } },
      template: { spec: { containers: [{ image: 'x:1', ports: [{ containerPort: 80 }] }] } },
    },
  })
  t.match(get('v1', 'Service', 's'), {
    spec: { type: 'NodePort', ports: [{ port: 80, targetPort: 'http', nodePort: 30_080 }] },
  })
  t.match(get('v1', 'ConfigMap', 'c'), { data: { a: 'b' } })
  t.match(get('v1', 'Secret', 'x'), { type: 'Opaque', data: { a: 'Yg==' } })
  const rbac = 'rbac.authorization.k8s.io/v1'
  t.match(get(rbac, 'ClusterRole', 'system:proxy'), {
    rules: [{ verbs: ['list', 'watch'], resources: ['services'] }],
  })
  t.match(get(rbac, 'ClusterRoleBinding', 'b'), {
    roleRef: { name: 'system:proxy' },
    subjects: [{ kind: 'ServiceAccount', name: 'proxy', namespace: 'default' }],
  })
  t.match((await server.kubectl('create namespace shop')).stderr, 'already exists')
  await server.ok('autoscale deployment d -n shop --min=2 --max=5 --cpu-percent=70')
  const autoscaler = (version: string) =>
    get(`autoscaling/${version}`, 'HorizontalPodAutoscaler', 'd', 'shop')
  t.match(autoscaler('v2'), {
    spec: {
      scaleTargetRef: { kind: 'Deployment', name: 'd' },
      minReplicas: 2,
      metrics: [{ resource: { name: 'cpu', target: { averageUtilization: 70 } } }],
    },
  })
  t.match(
    await server.ok('get horizontalpodautoscalers.v1.autoscaling -n shop -o yaml'),
    'UtilizationPercentage: 70',
  )
  t.match((await server.kubectl('create job j --image=x')).stderr, '--dry-run=client -o yaml')
  t.equal(await server.ok('auth can-i delete pods'), 'yes\n')
  t.match(await server.ok('auth can-i --list'), /^\*\.\* .* \[\*\]$/m)
})

t.test('a selector never changes, but its labels may come in another order', async (t) => {
  const api = createApiServer()
  const put = (labels: Readonly<Record<string, string>>) =>
    api.put({
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata: { name: 'web' },
      spec: {
        selector: { matchLabels: labels },
        template: {
          metadata: { labels: { app: 'web', tier: 'front' } },
          spec: { containers: [{ name: 'web', image: 'x' }] },
        },
      },
    })
  put({ app: 'web', tier: 'front' })
  put({ tier: 'front', app: 'web' })
  t.throws(() => put({ app: 'web' }), /spec.selector: .* field is immutable/)
})
