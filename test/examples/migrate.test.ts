/** The commands of docs/migrate.md run as written, with the embedded API server. */
import { execFile } from 'node:child_process'
import { cp, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { parse } from 'yaml'
import { createProgram } from '../../lib/cli/program.js'
import { parseFlags } from '../../lib/config/flags.js'
import { loadConfig } from '../../lib/config/load.js'
import { kubectlMinor, noKubectl, startServer } from '../lab/apiserver/support/kubectl.js'
import {
  dualStackCluster,
  k3sCluster,
  k3sFlags,
  kindCluster,
  kubeadmCluster,
  kubeadmDaemonSet,
} from './clusters.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const page = await readFile(join(root, 'docs/migrate.md'), 'utf8')
const skip = noKubectl || (kubectlMinor < 21 && 'kubectl 1.21 or newer has what the overlays use')

// Blocks of YAML go, because a comment there looks like a heading.
const withoutYaml = page.replace(/^```yaml\n[^]*?^```$/gm, '')

/** The console blocks between a heading and the next one of its rank or above, as shell scripts. */
function scriptsBelow(heading: string): readonly string[] {
  const [rank = ''] = /^#+/.exec(heading) ?? []
  const [, below = ''] = withoutYaml.split(`\n${heading}\n`)
  const [section = ''] = below.split(new RegExp(`^#{1,${rank.length}} `, 'm'))
  return Array.from(section.matchAll(/^```console\n([^]*?)^```$/gm), ([, block = '']) =>
    block.replace(/^\$ /gm, ''),
  )
}

const [prepare = '', switchAll = '', oneByOne = '', back = ''] =
  scriptsBelow('## A cluster of kubeadm')

const bash = (script: string, cwd: string, env: Readonly<Record<string, string>>) =>
  new Promise<{ readonly failure: string | undefined; readonly stderr: string }>((resolve) => {
    execFile(
      'bash',
      ['--norc', '-euo', 'pipefail', '-c', script],
      { cwd, env },
      (error, _, stderr) => resolve({ failure: error?.message, stderr }),
    )
  })

/** A cluster with these objects, and a copy of our folder with kubectl and two dummy programs. */
async function cluster(t: Test, objects: readonly object[]) {
  const server = await startServer()
  t.teardown(() => server.stop())
  const folder = t.testdir({})
  await cp(join(root, 'examples'), join(folder, 'examples'), { recursive: true })
  await mkdir(join(folder, 'bin'))
  for (const program of ['docker', 'kind']) {
    await writeFile(join(folder, 'bin', program), '#!/bin/sh\n', { mode: 0o755 })
  }
  const list = { apiVersion: 'v1', kind: 'List', items: objects }
  if (objects.length > 0) await server.ok('apply -f -', JSON.stringify(list))
  return {
    server,
    /** Runs scripts in one shell. Fails if one of their commands fails. */
    run: async (...scripts: readonly string[]) => {
      const result = await bash(scripts.join('\n'), folder, {
        PATH: `${join(folder, 'bin')}:${process.env['PATH'] ?? ''}`,
        HOME: folder,
        KUBECONFIG: server.kubeconfig,
      })
      t.equal(result.failure, undefined, result.stderr)
    },
    /** Asks the API server itself, because a kubectl for each question is most of the test's work. */
    get: async (path: string) => {
      const answer = await fetch(`${server.url}/${path}`)
      t.equal(answer.status, 200, path)
      return (await answer.json()) as {
        readonly items: readonly { readonly metadata: { readonly name: string } }[]
        readonly data: Readonly<Record<string, string>>
        readonly spec: typeof kubeadmDaemonSet.spec
      }
    },
  }
}

type Cluster = Awaited<ReturnType<typeof cluster>>

const inSystem = 'namespaces/kube-system'
const configMaps = `api/v1/${inSystem}/configmaps`
const daemonSets = `apis/apps/v1/${inSystem}/daemonsets`

/** The configuration that the pods of the new DaemonSet read. */
async function seenByPods({ get }: Cluster) {
  const { items } = await get(configMaps)
  const named = async (start: string) => {
    const name = items.find(({ metadata }) => metadata.name.startsWith(start))?.metadata.name
    return (await get(`${configMaps}/${name}`)).data
  }
  const text = (await named('kube-proxy-ts-config'))['config.conf'] ?? ''
  return {
    ...loadConfig(parseFlags([]), { name: 'config.conf', text }),
    apiServer: await named('kube-proxy-ts-api-server'),
  }
}

const selectorOf = async ({ get }: Cluster, name: string) =>
  (await get(`${daemonSets}/${name}`)).spec.template.spec.nodeSelector

/** Where the pods of the new DaemonSet see a folder of the node. */
async function mountOf({ get }: Cluster, name: string): Promise<string | undefined> {
  const { spec } = (await get(`${daemonSets}/kube-proxy-ts`)).spec.template
  return spec.containers[0]?.volumeMounts.find((mount) => mount.name === name)?.mountPath
}

/** Checks that nothing of ours is left, and that kube-proxy's DaemonSet is as before. */
async function checkBack(t: Test, { get }: Cluster): Promise<void> {
  const accounts = `api/v1/${inSystem}/serviceaccounts`
  const roles = 'apis/rbac.authorization.k8s.io/v1/clusterroles'
  for (const path of [daemonSets, configMaps, accounts, roles]) {
    const { items } = await get(path)
    const ours = items.filter(({ metadata }) => metadata.name.startsWith('kube-proxy-ts'))
    t.same(ours, [], path)
  }
  t.match((await get(`${daemonSets}/kube-proxy`)).spec, kubeadmDaemonSet.spec)
  t.same(
    (await get(`${daemonSets}/kube-proxy`)).spec.template.spec.nodeSelector,
    kubeadmDaemonSet.spec.template.spec.nodeSelector,
  )
}

for (const mode of ['nftables', 'iptables', 'ipvs', 'userspace', 'ebpf']) {
  t.test(`kubeadm: the recipe runs ${mode} mode, and goes back`, { skip }, async (t) => {
    const here = await cluster(t, kubeadmCluster)
    await here.run(prepare.replace('MODE=nftables', `MODE=${mode}`), switchAll)
    const { config, warnings, apiServer } = await seenByPods(here)
    t.equal(config.mode, mode, 'not iptables, which the empty mode of kubeadm means')
    t.equal(config.clientConnection.kubeconfig, '', 'the ServiceAccount: the pod has no such file')
    t.equal(config.iptables.localhostNodePorts, false)
    if (mode === 'ebpf') t.equal(config.ebpf.cgroup, await mountOf(here, 'cgroup'))
    t.same(config.clusterCIDR, '10.217.0.0/16', 'from the cluster, not from the example')
    t.same(warnings, [])
    t.same(apiServer, {
      KUBERNETES_SERVICE_HOST: '192.168.11.20',
      KUBERNETES_SERVICE_PORT: '8443',
    })
    t.match(await selectorOf(here, 'kube-proxy'), { 'kube-proxy': 'upstream' })
    await here.run('cd examples/kubernetes', `MODE=${mode}`, back)
    await checkBack(t, here)
  })
}

t.test(
  'kubeadm: an API server with an IPv6 address has no brackets in its variable',
  { skip },
  async (t) => {
    const here = await cluster(t, dualStackCluster)
    await here.run(prepare, switchAll)
    const { apiServer } = await seenByPods(here)
    t.same(apiServer, { KUBERNETES_SERVICE_HOST: 'fd00:11::20', KUBERNETES_SERVICE_PORT: '6443' })
  },
)

t.test(
  'kubeadm: one node after the other has one proxy, and the way back too',
  { skip },
  async (t) => {
    const here = await cluster(t, kubeadmCluster)
    // The script stops before the nodes get the new proxy.
    const [labels = '', hands = ''] = oneByOne.split(/(?=^for )/m)
    await here.run(prepare, labels)
    const theirs = { 'kubernetes.io/os': 'linux', 'kube-proxy': 'upstream' }
    const ours = { 'kubernetes.io/os': 'linux', 'kube-proxy': 'ts' }
    t.same(await selectorOf(here, 'kube-proxy'), theirs)
    t.same(await selectorOf(here, 'kube-proxy-ts'), ours)
    const nodesOf = async (who: string) => {
      const { items } = await here.get(`api/v1/nodes?labelSelector=kube-proxy%3D${who}`)
      return items.map(({ metadata }) => metadata.name)
    }
    const both = ['control-1', 'worker-1']
    t.same([await nodesOf('upstream'), await nodesOf('ts')], [both, []])
    await here.run(hands)
    t.same([await nodesOf('upstream'), await nodesOf('ts')], [[], both])
    await here.run('cd examples/kubernetes', 'MODE=nftables', back)
    await checkBack(t, here)
    t.same([await nodesOf('upstream'), await nodesOf('ts')], [[], []], 'no label is left')
  },
)

t.test(
  'kind: the recipe of kubeadm keeps what kind set for nodes that are containers',
  { skip },
  async (t) => {
    const here = await cluster(t, kindCluster)
    await here.run(prepare, switchAll)
    const { config, apiServer } = await seenByPods(here)
    t.equal(config.mode, 'nftables', 'not the iptables of kind')
    t.equal(config.conntrack.maxPerCore, 0)
    t.equal(apiServer['KUBERNETES_SERVICE_HOST'], 'kind-control-plane')
    await here.run('cd examples/kubernetes', 'MODE=nftables', back)
    await checkBack(t, here)
  },
)

t.test('kind: a new cluster without kube-proxy', { skip }, async (t) => {
  const here = await cluster(t, [])
  await here.run(...scriptsBelow('## A cluster of kind'))
  const { config, warnings, apiServer } = await seenByPods(here)
  t.equal(config.mode, 'nftables')
  t.equal(config.conntrack.maxPerCore, 0)
  t.same(warnings, [])
  t.same(apiServer, {
    KUBERNETES_SERVICE_HOST: 'kind-control-plane',
    KUBERNETES_SERVICE_PORT: '6443',
  })
  const { containers } = (await here.get(`${daemonSets}/kube-proxy-ts`)).spec.template.spec
  t.equal(containers[0]?.image, 'kube-proxy-ts:0.1.0', 'the image that was loaded')
})

t.test('k3s: the recipe finds the API server and the pods', { skip }, async (t) => {
  const here = await cluster(t, k3sCluster)
  await here.run(...scriptsBelow('## A cluster of k3s'))
  const { config, apiServer } = await seenByPods(here)
  t.equal(config.clusterCIDR, '10.42.0.0/16')
  t.same(apiServer, { KUBERNETES_SERVICE_HOST: '192.168.12.5', KUBERNETES_SERVICE_PORT: '6443' })
})

t.test('the flags that k3s gives kube-proxy are accepted, and have an effect', async (t) => {
  const { program } = await createProgram([])
  const known = program.options.map(({ long }) => long)
  for (const flag of k3sFlags) t.ok(known.includes(flag.split('=')[0]), flag)
  const pairs = k3sFlags.map((flag) => flag.slice('--'.length).split('=') as [string, string])
  const { config, warnings } = loadConfig(parseFlags(pairs), undefined)
  t.same(warnings, [])
  t.match(config, { mode: 'iptables', clusterCIDR: '10.42.0.0/16', conntrack: { maxPerCore: 0 } })
})

t.test('the YAML of the page does what the page says', (t) => {
  const blocks = Array.from(page.matchAll(/^```yaml\n([^]*?)^```$/gm), ([, text = '']) => text)
  t.same(
    blocks.map((text) => parse(text) as unknown),
    [
      { 'disable-kube-proxy': true },
      {
        kind: 'Cluster',
        apiVersion: 'kind.x-k8s.io/v1alpha4',
        networking: { kubeProxyMode: 'none' },
      },
    ],
  )
  t.end()
})
