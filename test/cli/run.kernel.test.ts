import { modeNames } from '../../lib/modes/registry.js'
import t, { type Test } from 'tap'
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { apiVersion, kind } from '../../lib/config/file.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { examples } from '../support/live-daemon.js'
import { program } from '../support/program.js'
import { createFaultyApi } from '../support/faulty-api.js'
import { until, untilSeen, untilThere } from '../support/until.js'
import { execSync, runSync } from '../support/run-sync.js'

/** The command as an operator runs it, in a network namespace of this process. */

const skip = enterPrivateNetns() ?? false
if (skip === false) execSync('ip', ['link', 'set', 'lo', 'up'])
const whole = fileURLToPath(new URL('../../lib/main.js', import.meta.url))

function start(t: Test, ...args: readonly string[]) {
  return startIn(t, process.env, ...args)
}

function startIn(t: Test, env: NodeJS.ProcessEnv, ...args: readonly string[]) {
  const command = [args[0] === 'apiserver' ? whole : program, ...args]
  return watched(t, spawn(process.execPath, command, { stdio, env }))
}

const stdio: ['ignore', 'pipe', 'pipe'] = ['ignore', 'pipe', 'pipe']

function watched(t: Test, child: ChildProcessByStdio<null, Readable, Readable>) {
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text))
  }
  const exited = once(child, 'exit').then(([code]: unknown[]) => code)
  const stop = async () => {
    if (child.exitCode === null) child.kill('SIGTERM')
    return exited
  }
  t.teardown(stop)
  return { output: () => output, exited, stop }
}

async function code(url: string): Promise<string> {
  return String((await fetch(url)).status)
}

async function body(url: string): Promise<string> {
  return (await fetch(url)).text()
}

async function post(url: string, object: unknown): Promise<void> {
  const headers = { 'Content-Type': 'application/json' }
  const reply = await fetch(url, { method: 'POST', headers, body: JSON.stringify(object) })
  if (!reply.ok) throw new Error(`${url}: ${reply.status} ${await reply.text()}`)
}

const ruleset = () => execSync('nft', ['list', 'ruleset'])
const healthz = 'http://127.0.0.1:10256'

t.test('the usual command line works, even if the API server starts later', { skip }, async (t) => {
  const folder = t.testdir({
    kubeconfig: JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'c', cluster: { server: 'http://127.0.0.1:8001' } }],
      users: [{ name: 'u', user: {} }],
      contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
      'current-context': 'x',
    }),
  })
  const proxy = start(
    t,
    `--kubeconfig=${folder}/kubeconfig`,
    '--cluster-cidr=10.240.0.0/12',
    '--feature-gates=ExperimentalCriticalPodAnnotation=true',
    '--proxy-mode=iptables',
    '--hostname-override=n1',
  )
  const output = () => Promise.resolve(proxy.output())
  await untilSeen('the mode', output, /Using \w+ Proxier/)
  t.match(proxy.output(), /feature gate ExperimentalCriticalPodAnnotation is unknown/)
  await untilSeen('a complaint about the API', output, /source of objects failed, will retry/)
  await untilSeen('healthz', () => code(`${healthz}/healthz`), /503/)
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /503/)
  t.equal(await code(`${healthz}/livez`), '200', 'restarting would not help')
  t.notMatch(ruleset(), /KUBE-|kube-proxy/, 'the kernel is untouched')

  const api = start(t, 'apiserver', '--listen', '127.0.0.1:8001')
  await untilSeen(
    'the API server',
    () => Promise.resolve(api.output()),
    /serving the Kubernetes API/,
  )
  const nodes = 'http://127.0.0.1:8001/api/v1/nodes'
  await post(nodes, { apiVersion: 'v1', kind: 'Node', metadata: { name: 'n1' } })
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  await untilSeen('healthz', () => code(`${healthz}/healthz`), /200/)
  t.match(ruleset(), /KUBE-/, 'H07: rules are there')
  t.match(await body('http://127.0.0.1:10249/proxyMode'), /^(iptables|userspace)$/)
  const metrics = await body('http://127.0.0.1:10249/metrics')
  t.match(metrics, /kubernetes_build_info\{git_version=".*",major="1",minor="36"/)
  t.match(metrics, /rest_client_requests_total\{code="200",method="GET",host="127.0.0.1:8001"\} \d/)
  t.match(metrics, /rest_client_requests_total\{code="<error>",method="GET",host=/, 'before it ran')
  await fetch(`${nodes}/n1`, { method: 'DELETE' })
  await untilSeen('healthz after the Node went', () => code(`${healthz}/healthz`), /503/)
  t.equal(await code(`${healthz}/livez`), '200', 'H05')
  t.equal(await proxy.stop(), 0, 'SIGTERM ends it well')
  for (const line of proxy.output().trim().split('\n')) {
    t.doesNotThrow(() => void JSON.parse(line), `JSON: ${line.slice(0, 60)}`)
  }
  t.notMatch(proxy.output(), /MaxListenersExceededWarning/)
})

t.test('R09: ServiceCIDRs that do not come delay no start for long', { skip }, async (t) => {
  const api = createFaultyApi()
  api.faults.inject({ resources: ['servicecidrs'], effect: { hang: true } })
  const ended = new AbortController()
  const serving = api.run(ended.signal)
  t.teardown(async () => {
    ended.abort()
    await serving
  })
  const master = `--master=${await api.listening()}`
  const proxy = start(t, master, '--proxy-mode=userspace', '--cleanup=false')
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  t.equal(await proxy.stop(), 0)
})

t.test('L19: a running process follows its configuration file', { skip }, async (t) => {
  const folder = t.testdir({ manifests: {} })
  const file = join(folder, 'kp.yaml')
  const write = (text: string) =>
    writeFileSync(file, `apiVersion: ${apiVersion}\nkind: ${kind}\nmode: userspace\n${text}`)
  write('')
  const proxy = start(t, '--config', file, '--manifests', `${folder}/manifests`, '--mode=ipvs')
  t.equal(await proxy.exited, 2, '--mode is no flag of ours')
  const again = start(t, '--config', file, '--manifests', `${folder}/manifests`, '--cleanup=false')
  const output = () => Promise.resolve(again.output())
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  write('syncPeriod: 5s\n')
  await untilSeen(
    'a complaint',
    output,
    /configuration file is wrong, the last good one stays in use/,
  )
  t.match(again.output(), /kp\.yaml:4: syncPeriod/)
  write('logging: {verbosity: 4}\n')
  await untilSeen('the change', output, /"path":"logging.verbosity","from":0,"to":4/)
  t.equal(await code(`${healthz}/livez`), '200', 'still there')
  write('logging: {verbosity: 4}\niptables: {syncPeriod: 20s}\n')
  await untilSeen('another', output, /"path":"iptables.syncPeriod","from":"30s","to":"20s"/)
  writeFileSync(`${folder}/manifests/large.yaml`, `${'# comment\n'.repeat(10_000)}kind: [\n`)
  await untilSeen('what a thread has read', output, /large\.yaml:10002: Flow sequence/)
  t.equal(await again.stop(), 0, 'it went on until it was told to stop')
})

t.test('L22: a port in use ends the process if the configuration says so', { skip }, async (t) => {
  const folder = t.testdir({})
  const common = ['--proxy-mode=userspace', `--manifests=${folder}`, '--metrics-bind-address=']
  const first = start(t, ...common)
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  const second = start(t, ...common, '--bind-address-hard-fail')
  t.equal(await second.exited, 1)
  const said = second.output().trim().split('\n')
  const last = JSON.parse(said.at(-1) ?? '') as { level: string; msg: string }
  t.match(last.msg, /^listen .*EADDRINUSE.*; free the port, choose another/)
  t.equal(last.level, 'error', 'it is a line of the log like the others')
  t.equal(await first.stop(), 0)
})

for (const mode of ['userspace', 'iptables'] as const) {
  t.test(
    `a ${mode} proxy that waits for the xtables lock ends with the signal`,
    { skip },
    async (t) => {
      const folder = t.testdir({ lock: '', manifests: {} })
      const lock = join(folder, 'lock')
      const hint = (verb: '-N' | '-X') =>
        execSync('iptables-legacy', ['-w', '-t', 'mangle', verb, 'KUBE-KUBELET-CANARY'])
      hint('-N')
      t.teardown(() => hint('-X'))
      const env = { ...process.env, XTABLES_LOCKFILE: lock }
      const holder = spawn('flock', ['-o', lock, 'cat'], { stdio: ['pipe', 'pipe', 'ignore'] })
      t.teardown(() => holder.kill())
      holder.stdin.write('held')
      await once(holder.stdout, 'data')
      const proxy = startIn(t, env, `--proxy-mode=${mode}`, `--manifests=${folder}/manifests`)
      await untilSeen('the wait', proxy.output, /lock is held, waiting/)
      t.equal(await proxy.stop(), 0)
      t.notMatch(proxy.output(), /giving up/, 'which ends after a minute')
    },
  )
}

for (const mode of ['nftables', 'userspace'] as const) {
  t.test(`H13: ${mode} mode with more health-check ports than files`, { skip }, async (t) => {
    const manifests = t.testdir({ 'services.yaml': manyHealthPorts(120) })
    const limited = ['--nofile=128:128', process.execPath, program]
    const flags = [
      `--proxy-mode=${mode}`,
      `--manifests=${manifests}`,
      '--nodeport-addresses=0.0.0.0/0',
    ]
    const proxy = watched(t, spawn('prlimit', [...limited, ...flags], { stdio }))
    await untilSeen('a refused port', proxy.output, /health-check node port cannot be opened/)
    await untilSeen('the rules', proxy.output, /"IPv6".*SyncProxyRules complete/)
    t.equal(await code(`${healthz}/healthz`), '200')
    t.equal(await code('http://127.0.0.1:31000'), '503', 'a port answers')
    t.equal(await proxy.stop(), 0)
  })
}

/** Services without endpoints, each with a health-check node port. */
function manyHealthPorts(count: number): string {
  const services = Array.from({ length: count }, (_, index) => ({
    ...{ apiVersion: 'v1', kind: 'Service' },
    metadata: { name: `web-${index}`, namespace: 'default' },
    spec: {
      ...{ type: 'LoadBalancer', externalTrafficPolicy: 'Local' },
      ...{ clusterIP: `10.96.7.${index + 1}`, healthCheckNodePort: 31_000 + index },
      ports: [{ port: 80, nodePort: 30_000 + index }],
    },
  }))
  return services.map((each) => JSON.stringify(each)).join('\n---\n')
}

/** A kubeconfig for a server that nobody asks, because the credentials of the user never come. */
const withUser = (user: object) =>
  JSON.stringify({
    clusters: [{ name: 'c', cluster: { server: 'http://127.0.0.1:8001' } }],
    users: [{ name: 'u', user }],
    contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
    'current-context': 'x',
  })

t.test('a proxy ends with the signal while a file or a plugin hangs', { skip }, async (t) => {
  await t.test('a file', async (t) => {
    const folder = t.testdir({ kubeconfig: withUser({ tokenFile: 'token' }) })
    const token = join(folder, 'token')
    execSync('mkfifo', [token])
    const proxy = start(t, '--proxy-mode=nftables', `--kubeconfig=${folder}/kubeconfig`)
    await untilSeen('the mode', proxy.output, /nftables mode writes rules/)
    // No log tells that the thread waits. A signal that comes before finds less, and no failure.
    await delay(1000)
    const hangs = delay(300_000, 'it waits for the file', { ref: false })
    const ended = await Promise.race([proxy.stop(), hangs])
    // Whoever opens a pipe for both ends waits for nobody, and lets a reader that still waits go on.
    const both = await open(token, 'r+')
    await both.close()
    t.equal(ended, 0)
    t.match(proxy.output(), /stopping/)
  })

  await t.test('a plugin, which ends, too', async (t) => {
    const plugin = join(t.testdir(), 'plugin')
    const args = ['-c', `echo $$ >${plugin}.new; mv ${plugin}.new ${plugin}; exec sleep 600`]
    const exec = { command: 'sh', args }
    const kubeconfig = `${plugin}.kubeconfig`
    writeFileSync(kubeconfig, withUser({ exec }))
    const proxy = start(t, '--proxy-mode=nftables', `--kubeconfig=${kubeconfig}`)
    const pid = await untilThere(
      'the plugin',
      () => existsSync(plugin) && readFileSync(plugin, 'utf8'),
    )
    t.teardown(() => isAlive(Number(pid)) && process.kill(Number(pid)))
    t.equal(await proxy.stop(), 0)
    await until('the end of the plugin', () => !isAlive(Number(pid)))
  })
})

t.test('a proxy that ends writes what Node was asked for', { skip }, async (t) => {
  const folder = t.testdir({ coverage: {} })
  const env = { ...process.env, NODE_V8_COVERAGE: join(folder, 'coverage') }
  const proxy = startIn(t, env, '--proxy-mode=nftables', '--manifests', examples)
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  t.equal(await proxy.stop(), 0)
  t.ok(readdirSync(env.NODE_V8_COVERAGE).length > 0, 'the coverage')
})

/** A process that has ended may still have its number, as a zombie, where nobody asks for its end. */
function isAlive(pid: number): boolean {
  const status = `/proc/${pid}/status`
  return existsSync(status) && !/^State:\s+Z/m.test(readFileSync(status, 'utf8'))
}

t.test('L01: a wrong configuration ends the process before any change', { skip }, async (t) => {
  const folder = t.testdir({ 'web.yaml': '', 'kp.yaml': 'mode: magic\n' })
  const before = ruleset()
  const wrong = start(t, `--config=${folder}/kp.yaml`, `--manifests=${folder}`, '--cleanup')
  t.equal(await wrong.exited, 2)
  t.match(wrong.output(), /kp\.yaml/)
  const nowhere = start(t, '--proxy-mode=nftables')
  t.equal(await nowhere.exited, 2, 'L03: no cluster to be in')
  const lines = nowhere.output()
  t.match(lines, /Neither --kubeconfig nor --master was given; using the in-cluster configuration/)
  t.match(lines, /KUBERNETES_SERVICE_HOST is not set/)
  t.notMatch(lines, /Using nftables Proxier|Setting/, 'nothing else was begun')
  t.equal(ruleset(), before)
})

t.test('L14: --init-only prepares the node and ends', { skip }, async (t) => {
  const before = ruleset()
  const limit = '/proc/sys/net/netfilter/nf_conntrack_max'
  const value = readFileSync(limit, 'utf8')
  const run = start(t, '--init-only', '--conntrack-max-per-core=0', '--oom-score-adj=0')
  t.equal(await run.exited, 0, run.output())
  t.match(run.output(), /Initialized this node/)
  t.match(run.output(), /Prepared this node for iptables mode/, 'which no mode means')
  const auto = start(t, '--init-only', '--conntrack-max-per-core=0', '--proxy-mode=auto')
  t.equal(await auto.exited, 0, auto.output())
  t.match(auto.output(), /^(?=.*"requested":"auto").*Prepared this node for nftables mode/m)
  t.equal(ruleset(), before)
  t.equal(readFileSync(limit, 'utf8'), value)
})

t.test('check and cleanup print what they found as text and as JSON', { skip }, async (t) => {
  const table = start(t, 'check')
  const code = await table.exited
  t.match(table.output(), /^userspace +(runs|does not run) /)
  t.match(table.output(), /\n(--proxy-mode=\w+ is the best here|No mode runs here)\.\n$/)
  const json = start(t, 'check', '--json')
  t.equal(await json.exited, code)
  const checks = JSON.parse(json.output()) as { mode: string; runs: boolean }[]
  t.equal(checks.some(({ runs }) => runs) ? 0 : 1, code)
  t.same(checks.map(({ mode }) => mode).sort(), [...modeNames].sort())
  const cleanup = start(t, '--cleanup')
  t.equal(await cleanup.exited, 0, cleanup.output())
  // KUBE-FIREWALL belongs to kubelet too, so it stays.
  t.notMatch(ruleset(), /KUBE-(?!FIREWALL)|kube-proxy/, 'what the runs before left is gone')
})

t.test('cleanup says which rules stay where iptables is missing', { skip }, (t) => {
  const add = (...chains: readonly string[]) =>
    chains.forEach((chain) => execSync('iptables-nft', ['-t', 'nat', '-N', chain]))
  add('KUBE-MARK-MASQ', 'KUBE-POSTROUTING')
  const script = 'for each in /usr/sbin /sbin; do mount -t tmpfs none $each; done; exec "$@"'
  const without = ['--mount', 'sh', '-c', script, 'sh']
  const words = [...without, process.execPath, program, 'cleanup']
  const cleanUp = () => runSync('unshare', words)
  t.equal(cleanUp().status, 0, 'kubelet before 1.27 has such chains')
  add('KUBE-SERVICES', 'KUBE-PORTALS-HOST')
  const { status, stderr } = cleanUp()
  t.equal(status, 1)
  t.match(stderr, /userspace: IPv4 rules are still there; install iptables/)
  t.match(stderr, /iptables: .*find iptables-nft: .*install iptables/)
  execSync(process.execPath, [program, 'cleanup'])
  t.notMatch(ruleset(), /KUBE-(?!FIREWALL)/)
  t.end()
})

t.test('cleanup removes ipvs rules of the backend that is not used now', { skip }, (t) => {
  const rules = ['render', '--mode', 'ipvs', '--manifests', examples]
  const all = execSync(process.execPath, [program, ...rules])
  const [, sets = '', batch = ''] = all.split(/^# (?:ipset restore|iptables-restore).*$/m)
  execSync('ipset', ['restore'], sets)
  execSync('iptables-legacy-restore', ['--noflush'], batch.split(/^#/m)[0])
  // kubelet tells by this chain which backend it uses.
  execSync('iptables-nft', ['-t', 'mangle', '-N', 'KUBE-KUBELET-CANARY'])
  const { stderr } = runSync(process.execPath, [program, 'cleanup'])
  t.notMatch(stderr, /an ipset stays/)
  t.notMatch(execSync('iptables-legacy-save'), /KUBE-/)
  execSync('iptables-nft', ['-t', 'mangle', '-X', 'KUBE-KUBELET-CANARY'])
  t.end()
})

/** Koffi does not load there, as on a processor for which there is none. */
function startWithoutKoffi(t: Test, ...args: readonly string[]): ReturnType<typeof start> {
  const { NODE_OPTIONS: before } = process.env
  process.env['NODE_OPTIONS'] = '--no-addons'
  const started = start(t, ...args)
  if (before === undefined) delete process.env['NODE_OPTIONS']
  else process.env['NODE_OPTIONS'] = before
  return started
}

t.test('where koffi does not load, iptables mode serves and cleans up', { skip }, async (t) => {
  const proxy = startWithoutKoffi(t, '--proxy-mode=iptables', '--manifests', examples)
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  t.match(proxy.output(), /Using iptables Proxier/)
  t.match(proxy.output(), /a UDP client stays with an endpoint that is gone/)
  t.match(ruleset(), /KUBE-SVC-/)
  t.equal(await proxy.stop(), 0)
  const check = startWithoutKoffi(t, 'check')
  await check.exited
  t.match(check.output(), /iptables +runs[\s\S]* koffi, for UDP clients/)
  // The other modes do not load, and it says so.
  const cleanup = startWithoutKoffi(t, 'cleanup')
  t.equal(await cleanup.exited, 1)
  const unseen = 'nobody looked, because koffi does not load here; install'
  t.match(cleanup.output(), `clean up this node: nftables: ${unseen}`)
  t.match(cleanup.output(), `; ebpf: ${unseen}`)
  t.notMatch(ruleset(), /KUBE-SVC-/)
  const diff = startWithoutKoffi(t, 'diff', '--proxy-mode=nftables', '--manifests', examples)
  t.equal(await diff.exited, 2, 'this is no difference')
  const trace = startWithoutKoffi(t, 'trace', '10.96.0.10:80')
  t.equal(await trace.exited, 1)
  for (const { output } of [diff, trace]) {
    t.match(output(), /^kube-proxy: koffi does not load here, .*\n$/, 'without a stack')
  }
})

t.test('US76: where koffi does not load, userspace mode serves', { skip }, async (t) => {
  const proxy = startWithoutKoffi(t, '--proxy-mode=nftables', '--manifests', examples)
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  t.match(proxy.output(), /this node cannot run nftables mode/)
  t.match(proxy.output(), /"dataPath":"net"/)
  t.match(ruleset(), /ip daddr 10\.96\.0\.10 .*redirect/i)
  execSync('nft', ['add rule ip nat PREROUTING iifname wan0 tcp dport 2222 dnat to 192.0.2.9:22'])
  const diff = startWithoutKoffi(t, 'diff', '--proxy-mode=userspace', '--manifests', examples)
  t.equal(await diff.exited, 2, 'what cannot be read is no difference')
  t.match(diff.output(), /iptables-save leaves out table nat/)
  t.equal(await proxy.stop(), 0)
  t.notMatch(ruleset(), /KUBE-PORTALS-(CONTAINER|HOST)/)
  execSync('nft', ['delete table ip nat'])
})

const heldProgram = `#!/bin/sh
while [ -e "\${0%/*}/held" ]; do sleep 0.1; done
PATH="\${PATH#*:}"
exec iptables-nft-save "$@"
`

t.test('a slow start tells which program it waits for', { skip }, async (t) => {
  const folder = t.testdir({ held: '', 'iptables-nft-save': heldProgram })
  chmodSync(join(folder, 'iptables-nft-save'), 0o755)
  const env = { ...process.env, PATH: `${folder}:${process.env['PATH']}` }
  const proxy = startIn(t, env, '--proxy-mode=iptables', '--manifests', examples)
  const line = /"waitedSeconds":\d+,"waitingFor":\["iptables-nft-save -t mangle \(\d+ s\)"\]/
  await untilSeen('what it waits for', proxy.output, line)
  t.notMatch(proxy.output(), /Using/)
  rmSync(join(folder, 'held'))
  await untilSeen('readyz', () => code(`${healthz}/readyz`), /200/)
  t.equal(await proxy.stop(), 0)
})
