import { cp, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { parseAllDocuments } from 'yaml'
import { parseFlags } from '../../lib/config/flags.js'
import { loadConfig } from '../../lib/config/load.js'
import { fullName } from '../../lib/observe/metric-spec.js'
import { metricTable } from '../../lib/observe/metrics.js'
import { runCommand } from '../support/run-command.js'
import { kubectlMinor, noKubectl, startServer } from '../lab/apiserver/support/kubectl.js'
import { problems, shapes } from './shapes.js'

const folder = fileURLToPath(new URL('../../../examples/kubernetes', import.meta.url))
const modes = ['userspace', 'iptables', 'nftables', 'ipvs', 'ebpf'] as const
const monitoring = `${folder}/components/monitoring`

interface Manifest {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string }
  readonly data?: Readonly<Record<string, string>>
  readonly spec?: Spec
}

interface Spec {
  readonly template: { readonly spec: PodSpec; readonly metadata: { readonly labels: object } }
  readonly selector: { readonly matchLabels: object }
  readonly groups: readonly { readonly rules: readonly { alert: string; expr: string }[] }[]
}

interface PodSpec {
  readonly serviceAccountName: string
  readonly initContainers: readonly Container[]
  readonly containers: readonly Container[]
  readonly volumes: readonly { readonly name: string; readonly configMap?: { name: string } }[]
}

interface Container {
  readonly name: string
  readonly args: readonly string[]
  readonly ports?: readonly { readonly name: string; readonly containerPort: number }[]
  readonly envFrom?: readonly { readonly configMapRef: { readonly name: string } }[]
  readonly volumeMounts: readonly { readonly name: string; readonly mountPath: string }[]
  readonly securityContext: object
  readonly livenessProbe?: { readonly httpGet: { readonly path: string; readonly port: string } }
  readonly startupProbe?: { readonly periodSeconds: number; readonly failureThreshold: number }
  readonly readinessProbe?: { readonly httpGet: { readonly path: string; readonly port: string } }
}

const parse = (text: string) =>
  parseAllDocuments(text).map((document) => document.toJS() as Manifest)

/** kubectl up to 1.20 brings kustomize 2, which calls folders `bases` and knows no components. */
const hasOldKustomize = kubectlMinor < 21

/** The examples in the form that this kubectl understands. */
async function examplesFor(t: Test): Promise<string> {
  if (!hasOldKustomize) return folder
  const copy = t.testdir({})
  await cp(folder, copy, { recursive: true })
  for (const mode of modes) {
    const file = join(copy, 'overlays', mode, 'kustomization.yaml')
    await writeFile(file, (await readFile(file, 'utf8')).replace('resources:', 'bases:'))
  }
  return copy
}

async function rendered(path: string): Promise<{ text: string; manifests: readonly Manifest[] }> {
  const { code, stdout, stderr } = await runCommand('kubectl', ['kustomize', path])
  if (code !== 0) throw new Error(stderr)
  return { text: stdout, manifests: parse(stdout) }
}

function one(manifests: readonly Manifest[], kind: string, name = ''): Manifest {
  const found = manifests.filter((of) => of.kind === kind && of.metadata.name.startsWith(name))
  const [first] = found
  if (first === undefined || found.length > 1) throw new Error(`${found.length} of kind ${kind}`)
  return first
}

function podSpecOf(manifests: readonly Manifest[]): PodSpec {
  const spec = one(manifests, 'DaemonSet').spec?.template.spec
  if (spec === undefined) throw new Error('the DaemonSet has no pods')
  return spec
}

for (const mode of modes) {
  void t.test(`the overlay of ${mode} mode`, { skip: noKubectl }, async (t) => {
    const { text, manifests } = await rendered(`${await examplesFor(t)}/overlays/${mode}`)
    const pod = podSpecOf(manifests)
    const [daemon] = pod.containers
    const config = one(manifests, 'ConfigMap', 'kube-proxy-ts-config')

    await t.test('has only fields that its kinds know', async (t) => {
      for (const { apiVersion, kind, ...rest } of manifests) {
        const shape = shapes[`${apiVersion} ${kind}`]
        t.same(shape ? problems(rest, shape, kind) : ['unknown kind'], [], kind)
      }
    })

    await t.test('has a configuration that this program accepts for this mode', async (t) => {
      const file = { name: 'config.conf', text: config.data?.['config.conf'] ?? '' }
      for (const { args, volumeMounts } of [...pod.initContainers, ...pod.containers]) {
        const pairs = args.map((arg) => arg.replace('--', '').split('=') as [string, string?])
        const flags = parseFlags(pairs.map(([name, value = 'true']) => [name, value] as const))
        const { config, warnings } = loadConfig(flags, file)
        t.equal(config.mode, mode)
        t.same(warnings, [])
        t.equal(config.metricsBindAddress, '127.0.0.1:10249', 'nobody else reads the metrics')
        if (mode === 'ebpf')
          t.ok(volumeMounts.some(({ mountPath }) => mountPath === config.ebpf.cgroup))
        const health = daemon?.ports?.find(({ name }) => name === 'healthz')?.containerPort
        t.equal(config.healthzBindAddress, `0.0.0.0:${health}`, 'probes ask the right port')
      }
    })

    await t.test('refers only to objects that exist', async (t) => {
      const maps = manifests.filter(({ kind }) => kind === 'ConfigMap')
      const names = new Set(maps.map(({ metadata }) => metadata.name))
      for (const { configMap } of pod.volumes) if (configMap) t.ok(names.has(configMap.name))
      for (const { configMapRef } of daemon?.envFrom ?? []) t.ok(names.has(configMapRef.name))
      const volumes = new Set(pod.volumes.map(({ name }) => name))
      for (const { volumeMounts } of [...pod.initContainers, ...pod.containers]) {
        for (const { name } of volumeMounts) t.ok(volumes.has(name), `volume ${name}`)
      }
      t.equal(pod.serviceAccountName, one(manifests, 'ServiceAccount').metadata.name)
      const { selector, template } = one(manifests, 'DaemonSet').spec ?? {}
      t.match(template?.metadata.labels, selector?.matchLabels ?? {})
    })

    await t.test('RB04: the daemon has few capabilities and cannot write its own files', (t) => {
      t.same(daemon?.securityContext, {
        privileged: false,
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: {
          drop: ['ALL'],
          add: ['NET_ADMIN', 'NET_RAW', ...(mode === 'ebpf' ? ['BPF'] : [])],
        },
      })
      t.equal(daemon?.livenessProbe?.httpGet.path, '/livez', 'H05')
      t.equal(daemon?.readinessProbe?.httpGet.path, '/readyz')
      const { periodSeconds = 0, failureThreshold = 0 } = daemon?.startupProbe ?? {}
      t.equal(periodSeconds * failureThreshold, 900, 'a slow node has minutes for its first rules')
      t.match(daemon, { livenessProbe: { timeoutSeconds: 10 } }, 'and seconds for an answer')
      t.end()
    })

    await t.test('applies to the API server, and a second time changes nothing', async (t) => {
      const server = await startServer()
      t.teardown(() => server.stop())
      const applied = await server.ok('apply -f -', text)
      t.equal(applied.match(/ created$/gm)?.length, manifests.length, applied)
      const again = await server.ok('apply -f -', text)
      t.equal(again.match(/ unchanged$/gm)?.length, manifests.length, again)
      const [row = ''] = (await server.ok('get daemonset -n kube-system --no-headers')).split('\n')
      t.match(row, /^kube-proxy-ts /)
    })
  })
}

void t.test(
  'another mode changes the configuration of the same DaemonSet',
  { skip: noKubectl },
  async (t) => {
    const server = await startServer()
    t.teardown(() => server.stop())
    const volumes: string[] = []
    for (const mode of modes) {
      const { text } = await rendered(`${await examplesFor(t)}/overlays/${mode}`)
      await server.ok('apply -f -', text)
      const live = server.api.get({
        apiVersion: 'apps/v1',
        kind: 'DaemonSet',
        namespace: 'kube-system',
        name: 'kube-proxy-ts',
      }) as unknown as Manifest
      const name = podSpecOf([live]).volumes.find(({ configMap }) => configMap)?.configMap?.name
      volumes.push(name ?? '')
    }
    t.equal(new Set(volumes).size, modes.length, 'a name of its own each, so that pods roll')
    const maps = await server.ok('get configmap -n kube-system -o name')
    for (const name of volumes) t.match(maps, name, 'what a rollback needs is still there')
  },
)

/** Metrics that the tables do not have: those of Prometheus and of the process. */
const foreign = /^(up|process_(start_time_seconds|resident_memory_bytes|cpu_seconds_total))$/

/** Each metric of an expression, with the labels of its selector. */
function metricsOf(expression: string): readonly { name: string; labels: readonly string[] }[] {
  const outside = expression.replace(/\b(by|on|without) \([^)]*\)/g, '')
  return [...outside.matchAll(/\b([a-z_]+)\b(?:\{([^}]*)\})?(?=$|[\s)[\]>=<\-+*/,])/g)]
    .map(([, name = '', labels = '']) => ({
      name,
      labels: [...labels.matchAll(/([a-z_]+)(?:=|!)/g)].map(([, label = '']) => label),
    }))
    .filter(({ name }) => /^(kubeproxy|process|up$)/.test(name))
}

const tabled = new Map(
  metricTable.flatMap((spec) => {
    const name = fullName(spec)
    if (spec.type !== 'histogram') return [[name, spec.labels] as const]
    return ['_bucket', '_sum', '_count'].map((end) => [name + end, [...spec.labels, 'le']] as const)
  }),
)
/** The labels that the PodMonitor adds to every series. */
const scrapeLabels = ['node', 'job', 'instance']

function checkExpression(t: Test, expression: string, where: string): number {
  const used = metricsOf(expression)
  for (const { name, labels } of used) {
    const known = foreign.test(name) ? [] : tabled.get(name)
    if (!t.ok(known, `${where}: ${name} is a metric of the tables`)) continue
    const unknown = labels.filter((label) => ![...(known ?? []), ...scrapeLabels].includes(label))
    t.same(unknown, [], `${where}: labels of ${name}`)
  }
  const grouped = [...expression.matchAll(/\bby \(([^)]*)\)/g)].flatMap(([, list = '']) =>
    list.split(',').map((label) => label.trim()),
  )
  const known = [...scrapeLabels, ...used.flatMap(({ name }) => tabled.get(name) ?? [])]
  t.same(
    grouped.filter((label) => !known.includes(label)),
    [],
    `${where}: grouped by`,
  )
  return used.length
}

void t.test('RB02, RB03, RB05: the pod runs on every node, before any Service works', async (t) => {
  const base = async (file: string) => parse(await readFile(`${folder}/base/${file}`, 'utf8'))
  const account = { kind: 'ServiceAccount', name: 'kube-proxy-ts', namespace: 'kube-system' }
  t.match(one(await base('rbac.yaml'), 'ClusterRoleBinding'), {
    roleRef: { kind: 'ClusterRole', name: 'kube-proxy-ts' },
    subjects: [account],
  })
  const pod = podSpecOf(await base('daemon-set.yaml'))
  t.match(pod, {
    hostNetwork: true,
    priorityClassName: 'system-node-critical',
    serviceAccountName: account.name,
    tolerations: [{ operator: 'Exists' }],
  })
  const [daemon] = pod.containers
  t.match(daemon, {
    env: [{ name: 'NODE_NAME', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } }],
    envFrom: [{ configMapRef: { name: 'kube-proxy-ts-api-server' } }],
  })
  t.ok(daemon?.args.includes('--hostname-override=$(NODE_NAME)'))
  const hostPath = (name: string) => pod.volumes.find((volume) => volume.name === name)
  t.match(hostPath('xtables-lock'), {
    hostPath: { path: '/run/xtables.lock', type: 'FileOrCreate' },
  })
  t.match(hostPath('modules'), { hostPath: { path: '/lib/modules' } })
  // A folder that is there also without a bpffs below it.
  t.match(hostPath('sys-fs'), { hostPath: { path: '/sys/fs', type: 'Directory' } })
  t.match(pod.initContainers[0]?.volumeMounts.at(-1), { name: 'sys-fs' })
})

void t.test('the daemon serves every metric of the alerts and of the dashboard', async (t) => {
  const rules = parse(await readFile(`${monitoring}/alerts.yaml`, 'utf8'))[0]?.spec?.groups ?? []
  const alerts = rules.flatMap((group) => group.rules)
  t.ok(alerts.length >= 8)
  for (const { alert, expr } of alerts) t.ok(checkExpression(t, expr, alert) > 0, `${alert} asks`)

  const dashboard = JSON.parse(await readFile(`${monitoring}/dashboard.json`, 'utf8')) as {
    readonly panels: readonly {
      readonly id: number
      readonly title: string
      readonly gridPos: { readonly x: number; readonly w: number }
      readonly targets: readonly { readonly expr: string }[]
      readonly fieldConfig: { readonly defaults: { readonly unit?: string } }
    }[]
  }
  t.ok(dashboard.panels.length >= 12)
  t.equal(new Set(dashboard.panels.map(({ id }) => id)).size, dashboard.panels.length)
  t.equal(new Set(dashboard.panels.map(({ title }) => title)).size, dashboard.panels.length)
  for (const { title, targets, gridPos, fieldConfig } of dashboard.panels) {
    t.ok(title !== '' && (fieldConfig.defaults.unit ?? '') !== '', `${title} has a unit`)
    t.ok(gridPos.x + gridPos.w <= 24, `${title} fits`)
    for (const { expr } of targets) t.ok(checkExpression(t, expr, title) > 0, `${title} asks`)
  }
})

void t.test('the monitoring component has only fields that its kinds know', async (t) => {
  for (const file of ['pod-monitor.yaml', 'alerts.yaml']) {
    for (const { apiVersion, kind, ...rest } of parse(
      await readFile(`${monitoring}/${file}`, 'utf8'),
    )) {
      const shape = shapes[`${apiVersion} ${kind}`]
      t.same(shape ? problems(rest, shape, kind) : ['unknown kind'], [])
    }
  }
})

void t.test('the check of fields finds a mistyped, a missing and a wrong one', (t) => {
  const shape = shapes['v1 ServiceAccount']
  if (shape === undefined) throw new Error('no such shape')
  t.same(problems({ metadata: { nam: 'x', labels: { a: 1 } } }, shape, 'x'), [
    'x.metadata.name is missing',
    'x.metadata.nam is unknown',
    'x.metadata.labels: {"a":1} is not texts',
  ])
  t.end()
})

const customKinds = [
  ['PodMonitor', 'podmonitors'],
  ['PrometheusRule', 'prometheusrules'],
].map(([kind, plural]) => ({
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: `${plural}.monitoring.coreos.com` },
  spec: {
    group: 'monitoring.coreos.com',
    scope: 'Namespaced',
    names: { kind, plural, singular: kind?.toLowerCase(), listKind: `${kind}List` },
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        schema: {
          openAPIV3Schema: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
        },
      },
    ],
  },
}))

void t.test(
  'an overlay with the monitoring component applies to a cluster with the operator',
  { skip: noKubectl || (hasOldKustomize && 'components need kubectl 1.21 or newer') },
  async (t) => {
    const server = await startServer()
    t.teardown(() => server.stop())
    for (const definition of customKinds) await server.ok('apply -f -', JSON.stringify(definition))
    const copy = t.testdir({})
    await cp(folder, copy, { recursive: true })
    const file = join(copy, 'overlays/nftables/kustomization.yaml')
    const text = await readFile(file, 'utf8')
    t.match(text, /^# components:\n#   - /m)
    await writeFile(file, text.replace('# components:\n#   - ', 'components:\n  - '))
    const { text: all } = await rendered(join(copy, 'overlays/nftables'))
    const applied = await server.ok('apply -f -', all)
    for (const kind of ['podmonitor', 'prometheusrule', 'configmap/kube-proxy-ts-dashboard']) {
      t.match(applied, new RegExp(`${kind}.* created`))
    }
    t.match(await server.ok('get prometheusrules -n kube-system -o name'), 'kube-proxy-ts')
  },
)
