/** The Helm chart and the overlays of kustomize make the same manifests. */
import { execFile, spawnSync } from 'node:child_process'
import { cpSync, existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { parse, parseAllDocuments } from 'yaml'
import { parseFlags } from '../../lib/config/flags.js'
import { loadConfig } from '../../lib/config/load.js'
import { kubectlMinor, noKubectl, startServer } from '../lab/apiserver/support/kubectl.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const chart = join(root, 'examples/chart')
const got = join(root, 'build/tools/helm')
const helm = existsSync(got) ? got : 'helm'
const noHelm = spawnSync(helm, ['version']).error
  ? 'helm is not installed: scripts/get-helm build/tools'
  : false
const skip =
  noHelm || noKubectl || (kubectlMinor < 22 && 'kubectl 1.22 or newer has what the components use')
const modes = ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'] as const
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  readonly version: string
}

function run(program: string, ...args: string[]) {
  return spawnSync(program, args, { encoding: 'utf8' })
}

const template = (...values: string[]) =>
  run(helm, 'template', 'kube-proxy-ts', chart, '--namespace=kube-system', ...values)

interface Manifest {
  readonly kind: string
  readonly metadata: { readonly name: string }
}

interface DaemonSet extends Manifest {
  readonly spec: {
    readonly template: {
      readonly spec: {
        readonly initContainers: { readonly name: string; readonly args: readonly string[] }[]
        readonly containers: readonly {
          readonly ports: readonly { readonly name: string; readonly containerPort: number }[]
          readonly args: readonly string[]
          readonly securityContext: { readonly capabilities: { readonly add: readonly string[] } }
        }[]
      }
    }
  }
}

/** The manifests sorted, with the YAML in ConfigMaps parsed, and without hashes in names. */
function normal(text: string): readonly Manifest[] {
  const withoutHashes = text.replace(/(kube-proxy-ts-(?:config|api-server))-[a-z0-9]{10}\b/g, '$1')
  const manifests = parseAllDocuments(withoutHashes).map((of) => of.toJS() as Manifest)
  // Patches change the order of the steps before the daemon, which do not depend on each other.
  for (const { kind, spec } of manifests as DaemonSet[])
    if (kind === 'DaemonSet')
      spec.template.spec.initContainers.sort((one, other) => one.name.localeCompare(other.name))
  const readInside = manifests.map((manifest) =>
    'data' in manifest
      ? {
          ...manifest,
          data: Object.entries(manifest.data as Record<string, string>).map(([name, value]) => [
            name,
            parse(value) as unknown,
          ]),
        }
      : manifest,
  )
  const key = ({ kind, metadata }: Manifest) => `${kind} ${metadata.name}`
  return readInside.sort((one, other) => key(one).localeCompare(key(other)))
}

/** The configuration in the ConfigMap. */
function configIn(manifests: string): string {
  const documents = parseAllDocuments(manifests).map(
    (of) => of.toJS() as { data?: Record<string, string> },
  )
  return documents.find(({ data }) => data?.['config.conf'])?.data?.['config.conf'] ?? ''
}

/** What both say: values of the chart, and components that the overlay has with the same meaning. */
const cases = modes.flatMap((mode) =>
  (
    [
      ['seccomp=RuntimeDefault', []],
      ['seccomp=Localhost', ['seccomp']],
      ['flows=true', ['flows']],
      ['seccomp=Localhost,flows=true', ['seccomp', 'flows']],
    ] as const
  ).map(([values, parts], at) => ({ name: `${mode}-${at}`, mode, values, parts })),
)

/** The manifests of each case from one run, because to start a program costs more than a case. */
function byCase(text: string, start: RegExp): ReadonlyMap<string, string> {
  const found = new Map<string, string>()
  for (const document of text.split(/^---$/m)) {
    const [, name = ''] = start.exec(document) ?? []
    found.set(name, `${found.get(name) ?? ''}---\n${document}`)
  }
  return found
}

/** A chart that depends on ours once for each case. */
function charts(t: Test): ReadonlyMap<string, string> {
  const dependencies = cases.map(({ name }) => ({ name: 'kube-proxy-ts', version, alias: name }))
  const parent = t.testdir({
    'Chart.yaml': JSON.stringify({ apiVersion: 'v2', name: 'all', version, dependencies }),
    charts: {},
  })
  cpSync(chart, join(parent, 'charts/kube-proxy-ts'), { recursive: true })
  const values = cases.flatMap(({ name, mode, values }) =>
    `mode=${mode},${values}`.split(',').flatMap((value) => ['--set', `${name}.${value}`]),
  )
  const words = ['template', 'all', parent, '--namespace=kube-system', ...values]
  const { stdout, stderr, status } = run(helm, ...words)
  t.equal(status, 0, stderr)
  return byCase(stdout, /^# Source: all\/charts\/([^/]*)/m)
}

/** An overlay for each case, with some of its optional parts. */
function overlays(t: Test): ReadonlyMap<string, string> {
  const copy = t.testdir({})
  cpSync(join(root, 'examples/kubernetes'), copy, { recursive: true })
  // With both the page says which list is needed.
  const page = readFileSync(join(copy, 'README.md'), 'utf8')
  const command = /`(cp [^`]*)`/.exec(page)?.[1] ?? 'false'
  for (const { name, mode, parts } of cases) {
    cpSync(join(copy, 'overlays', mode), join(copy, 'overlays', name), { recursive: true })
    const file = join(copy, 'overlays', name, 'kustomization.yaml')
    if (parts.length > 1 && mode !== 'ebpf')
      t.equal(spawnSync('sh', ['-c', command.replace('MODE', name)], { cwd: copy }).status, 0)
    const components = parts.map((name) => `../../components/${name}`).join(', ')
    // The prefix keeps the cases apart.
    const added = `\ncomponents: [${components}]\nnamePrefix: ${name}-is-\n`
    writeFileSync(file, `${readFileSync(file, 'utf8')}${added}`)
  }
  const resources = cases.map(({ name }) => name)
  writeFileSync(join(copy, 'overlays/kustomization.yaml'), JSON.stringify({ resources }))
  const { stdout, stderr, status } = run('kubectl', 'kustomize', join(copy, 'overlays'))
  t.equal(status, 0, stderr)
  return byCase(stdout, /([a-z]+-[0-9])-is-/)
}

t.test('the chart equals the overlay', { skip }, (t) => {
  const [fromCharts, fromOverlays] = [charts(t), overlays(t)]
  for (const { name, mode, values } of cases) {
    t.test(`${mode} mode, ${values}`, (t) => {
      const ofOverlay = fromOverlays.get(name)?.replaceAll(`${name}-is-`, '') ?? ''
      t.ok(daemonIn(ofOverlay))
      t.same(normal(fromCharts.get(name) ?? ''), normal(ofOverlay))
      t.end()
    })
  }
  t.end()
})

function podIn(manifests: string) {
  const set = parseAllDocuments(manifests).map((of) => of.toJS() as DaemonSet)
  return set.find(({ kind }) => kind === 'DaemonSet')?.spec.template.spec
}

function daemonIn(manifests: string) {
  return podIn(manifests)?.containers[0]
}

t.test('probes and Prometheus ask the ports of the configuration', { skip: noHelm }, (t) => {
  for (const [config, healthz, metrics] of [
    ['{}', 10256, 10249],
    ['{"healthzBindAddress":"[::]:10300","metricsBindAddress":"0.0.0.0:10301"}', 10300, 10301],
    ['{"metricsBindAddress":""}', 10256, 10249],
    ['{"healthzBindAddress":"0.0.0.0","metricsBindAddress":"0.0.0.0"}', 10256, 10249],
    ['{"healthzBindAddress":"2001:db8::5","metricsBindAddress":"::"}', 10256, 10249],
  ] as const) {
    const { stdout, stderr } = template('--set-json', `config=${config}`)
    const ports = daemonIn(stdout)?.ports.map(({ name, containerPort }) => [name, containerPort])
    t.same(Object.fromEntries(ports ?? []), { healthz, metrics }, `${config} ${stderr}`)
  }
  t.end()
})

t.test('with flows the daemon counts connections, and may use the ring', { skip }, (t) => {
  const { stdout } = template('--set', 'mode=nftables,flows=true,seccomp=Localhost')
  t.match(stdout, '"bpf",', 'in the list of system calls')
  const daemon = daemonIn(stdout)
  t.ok(daemon?.securityContext.capabilities.add.includes('BPF'))
  // The daemon may not change the settings of the kernel that count bytes. The step before it does.
  const prepare = podIn(stdout)?.initContainers.find(({ name }) => name === 'prepare-node')
  const text = configIn(stdout)
  for (const args of [daemon?.args, prepare?.args]) {
    const flags = (args ?? []).map((word) => word.replace('--', '').split('='))
    const given = flags.filter(([name]) => name !== 'config')
    const { config } = loadConfig(
      parseFlags(given.map(([name = '', value = 'true']) => [name, value] as const)),
      { name: 'config.conf', text },
    )
    t.equal(config.flows.enabled, true)
  }
  t.end()
})

t.test('the linter of Helm has nothing to say but that there is no icon', { skip: noHelm }, (t) => {
  const { stdout, status } = run(helm, 'lint', '--strict', chart)
  t.equal(status, 0, stdout)
  t.same(stdout.match(/^\[.*$/gm), ['[INFO] Chart.yaml: icon is recommended'])
  t.end()
})

t.test('the schema refuses what the chart does not know, by name', { skip: noHelm }, (t) => {
  // Helm tells all that it refuses, so one call has a value for each of many keys.
  for (const refused of [
    [
      ['mode=ebfp', "at '/mode'"],
      ['clusterCIDR=10.244.0.0', "at '/clusterCIDR'"],
      ['apiServer.port=70000', "at '/apiServer/port'"],
      ['apiServer.host=https://192.0.2.10', "at '/apiServer/host'"],
      ['config.mode=iptables', "at '/config/mode'"],
      ['seccomp=Unconfined', "at '/seccomp'"],
      ['flows=often', "at '/flows'"],
      ['maxUnavailable=ten', "at '/maxUnavailable'"],
    ],
    [
      ['clusterCIDR=10.244.0.0/33', "at '/clusterCIDR'"],
      ['apiServer.host=192.0.2.10:6443', "at '/apiServer/host'"],
      ['apiserver.host=1', "'apiserver'"],
      ['maxUnavailable=0%', "at '/maxUnavailable'"],
    ],
    [
      ['clusterCIDR=10.244.0.256/16', "at '/clusterCIDR'"],
      ['apiServer.host=[fd00::1]', "at '/apiServer/host'"],
      ['maxUnavailable=101%', "at '/maxUnavailable'"],
    ],
    [['clusterCIDR=fd00::/129', "at '/clusterCIDR'"]],
  ] as const) {
    const { status, stderr } = template(...refused.flatMap(([given]) => ['--set', given]))
    t.not(status, 0)
    for (const [given, named] of refused) t.match(stderr, named, given)
  }
  for (const given of [
    ['clusterCIDR=fd00:10::/56', 'apiServer.host=api.cluster-1.example.com', 'maxUnavailable=100%'],
    ['clusterCIDR=10.244.0.0/16\\,fd00:10:244::/56', 'apiServer.host=fd00::1', 'maxUnavailable=3'],
    // As in a file of values in which every key below it is a comment.
    ['apiServer.host=::1', 'config=null'],
  ]) {
    const { status, stderr } = template(...given.flatMap((value) => ['--set', value]))
    t.equal(status, 0, `${given.join()}: ${stderr}`)
  }
  t.end()
})

t.test('each value is in the schema, with a default and a comment', (t) => {
  const text = readFileSync(join(chart, 'values.yaml'), 'utf8')
  const schema = JSON.parse(readFileSync(join(chart, 'values.schema.json'), 'utf8')) as {
    readonly properties: object
  }
  const names = Object.keys(schema.properties).filter((name) => name !== 'global')
  t.same(Object.keys(parse(text) as object).sort(), names.sort())
  for (const name of names)
    t.match(text, new RegExp(`(^#.*\\n|^[a-z].*\\n)${name}:|^${name}:\\n +#`, 'm'), name)
  t.match(parse(readFileSync(join(chart, 'Chart.yaml'), 'utf8')), { version, appVersion: version })
  t.same(readdirSync(join(chart, 'files/seccomp')).sort(), modes.map((of) => `${of}.json`).sort())
  t.end()
})

t.test('keys of the user win over ours, and this program accepts the whole', { skip }, (t) => {
  const set = 'config.metricsBindAddress=0.0.0.0:10249,config.ipvs.scheduler=lc,mode=ipvs'
  const { stdout } = template('--set', set)
  const text = configIn(stdout)
  const { config, warnings } = loadConfig(parseFlags([]), { name: 'config.conf', text })
  t.same(warnings, [])
  t.match(config, {
    mode: 'ipvs',
    metricsBindAddress: '0.0.0.0:10249',
    ipvs: { scheduler: 'lc' },
  })
  t.end()
})

t.test('what the chart writes applies, and another mode rolls the pods', { skip }, async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())
  const names = new Set<string>()
  for (const mode of modes) {
    const { stdout } = template('--set', `mode=${mode}`)
    t.match(await server.ok('apply -f -', stdout), /daemonset\S* (created|configured)/)
    names.add(/name: (kube-proxy-ts-config-\w+)$/m.exec(stdout)?.[1] ?? '')
  }
  t.equal(names.size, modes.length)
})

t.test(
  'the commands of its page install, upgrade and roll back, and nothing is left',
  { skip },
  async (t) => {
    const server = await startServer()
    t.teardown(() => server.stop())
    const env = { ...process.env, KUBECONFIG: server.kubeconfig, HOME: t.testdir({}) }
    const call = (line: string) => promisify(execFile)(helm, line.split(' '), { cwd: root, env })
    const page = readFileSync(join(chart, 'README.md'), 'utf8')
    const lines = Array.from(page.matchAll(/^\$ helm (.*)$/gm), ([, line = '']) => line)
    t.same(
      lines.map((line) => line.split(' ')[0]),
      ['install', 'upgrade', 'rollback'],
    )
    const modes: string[] = []
    for (const line of lines) {
      await call(line)
      modes.push(
        /^ *mode: (\w+)/m.exec(await server.ok('get configmap -n kube-system -o yaml'))?.[1] ?? '',
      )
    }
    t.same(modes, ['nftables', 'iptables', 'nftables'])
    await call('uninstall proxy --namespace kube-system')
    for (const kind of ['daemonset', 'configmap', 'serviceaccount', 'clusterrole', 'secret'])
      t.notMatch(await server.ok(`get ${kind} -A -o name`), /proxy/, kind)
  },
)
