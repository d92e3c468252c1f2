import { lastingDifferences } from '../../lib/inspect/differences.js'
import t, { type Test } from 'tap'
import { execFileSync } from 'node:child_process'
import { cpSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { enterPrivateNetns } from '../support/private-netns.js'
import { commandThread, type Command } from '../support/command-thread.js'
import { runCommand } from '../support/run-command.js'
import { addressMark } from '../../lib/modes/userspace/names.js'
import {
  examples,
  kubeProxy as program,
  kubeProxyCommand,
  sourceFlags,
  startDaemon,
} from '../support/live-daemon.js'
import { programSkip } from '../support/netns.js'
import { withoutPrograms } from '../support/without-programs.js'

/** `diff` and `explain --live` after another program changed the rules of the daemon. */

const skip = enterPrivateNetns() ?? false
if (skip === false) {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  execFileSync('ip', ['address', 'add', '192.0.2.1/24', 'dev', 'lo'])
}

const kubeProxy = commandThread()

const run = (file: string, ...args: string[]) =>
  execFileSync(file, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })

interface Difference {
  readonly where: string
  readonly expected?: string
  readonly found?: string
  readonly owner: string
}

/** Each difference as one line: `where | expected | found | owner`. */
async function differences(mode: string, ask: Command = kubeProxy): Promise<readonly string[]> {
  const { stdout, stderr } = await ask('diff', '--mode', mode, ...sourceFlags, '--json')
  if (stdout === '') throw new Error(stderr)
  const { families } = JSON.parse(stdout) as { families: { differences: Difference[] }[] }
  return families.flatMap(({ differences: list }) =>
    list.map(({ where, expected = '', found = '', owner }) =>
      [where, expected, found, owner].join(' | '),
    ),
  )
}

/** In userspace mode the program has to ask: it reads files, by threads that may be elsewhere. */
async function expectClean(t: Test, ask: Command = program): Promise<void> {
  const { code, stdout } = await ask('diff')
  t.equal(code, 0, 'the daemon tells how it is configured')
  t.match(stdout, /5 service ports: the kernel holds what it should\./)
}

t.test(
  'diff names each rule and element of nftables mode that somebody changed',
  { skip },
  async (t) => {
    const daemon = await startDaemon(t, 'nftables')
    await expectClean(t, kubeProxy)
    await daemon.end('SIGKILL')
    run('nft', 'flush', 'chain', 'ip', 'kube-proxy', 'mark-for-masquerade')
    run('nft', 'delete', 'element', 'ip', 'kube-proxy', 'service-ips', '{ 10.96.0.10 . tcp . 80 }')
    run('nft', 'add', 'element', 'ip', 'kube-proxy', 'cluster-ips', '{ 10.9.9.9 }')
    run('nft', 'add', 'rule', 'ip', 'kube-proxy', 'services', 'ip daddr 1.2.3.4 drop')
    run('nft', 'add', 'chain', 'ip', 'kube-proxy', 'stray')
    run('nft', 'delete', 'map', 'ip', 'kube-proxy', 'sctp-endpoints')
    t.same(await differences('nftables'), [
      'chain services |  | ip daddr 1.2.3.4 drop | ',
      'chain mark-for-masquerade | meta mark set meta mark | 0x00004000 |  | ',
      'map sctp-endpoints | the map |  | ',
      'map service-ips | 10.96.0.10 . tcp . 80 : goto service-SUSTUHLJ-default/web/tcp/http |  | default/web:http',
      'set cluster-ips |  | 10.9.9.9 | ',
      'chain stray |  | a chain of 0 rules that nothing here asks for | ',
    ])
    const text = await kubeProxy('diff', '--mode', 'nftables', ...sourceFlags)
    t.equal(text.code, 1)
    t.match(
      text.stdout,
      /map service-ips \(default\/web:http\)\n {2}- 10\.96\.0\.10 \. tcp \. 80 : goto/,
    )

    const explain = ['explain', 'web', '--mode', 'nftables', ...sourceFlags, '--live']
    const told = await kubeProxy(...explain)
    t.match(
      told.stdout,
      /element service-ips .*\n.*\n +!! MISSING: the kernel does not have this now/,
    )
    t.match(told.stdout, /With the rules that it has now:\n100\.0 % refused/)
    t.match(told.stdout, /!! NOT OURS: the kernel has here too: ip daddr 1\.2\.3\.4 drop/)
    for (const last of [5, 6, 7, 8])
      run('nft', 'add', 'rule', 'ip', 'kube-proxy', 'services', `ip daddr 1.2.3.${last} drop`)
    const many = (await kubeProxy(...explain)).stdout
    t.match(many, /(?: +!! NOT OURS: the kernel has here too: .* drop\n){3} +!! NOT OURS: 2 more\n/)
    t.equal(many.match(/1\.2\.3\.4 drop/g)?.length, 1, 'not at each rule of the chain')
    run('nft', 'add', 'table', 'ip', 'kube-proxy', '{ flags dormant; }')
    const off = await kubeProxy('diff', '--mode', 'nftables', ...sourceFlags)
    t.match(off.stdout, /table ip kube-proxy\n {2}\+ flags dormant\n/)
    const switchedOff = (await kubeProxy(...explain)).stdout
    t.match(switchedOff, /100\.0 % sent on to 10\.96\.0\.10:80/)
    t.match(switchedOff, /!! SWITCHED OFF: the table has flags dormant/)
    t.notMatch(switchedOff, /MISSING/)
    run('nft', 'delete', 'table', 'ip', 'kube-proxy')
    const all = (await differences('nftables')).filter((line) => !line.includes('ip6'))
    t.same(all, ['table ip kube-proxy | the table |  | '])
    t.match((await kubeProxy(...explain)).stdout, /100\.0 % sent on to 10\.96\.0\.10:80/)
    await kubeProxy('cleanup')
  },
)

for (const backend of ['nft', 'legacy'] as const) {
  const without = skip || programSkip(`iptables-${backend}`)
  t.test(
    `diff names each rule of iptables mode (${backend}) that somebody changed`,
    { skip: without },
    async (t) => {
      // A process asks for the backend of the node once.
      const kubeProxy = commandThread()
      const iptables = (...args: string[]) => run(`iptables-${backend}`, '-t', 'nat', ...args)
      // Kubelet shows the backend of the node by this chain.
      run(`iptables-${backend}`, '-t', 'mangle', '-N', 'KUBE-IPTABLES-HINT')
      const daemon = await startDaemon(t, 'iptables')
      await expectClean(t, kubeProxy)
      const explain = ['explain', 'web', '--mode', 'iptables', ...sourceFlags, '--live']
      t.match(
        (await kubeProxy(...explain)).stdout,
        /The kernel has every rule and element of this way\./,
      )
      await daemon.end('SIGKILL')
      iptables('-D', 'PREROUTING', '1')
      iptables('-A', 'INPUT', '-j', 'KUBE-MARK-MASQ')
      iptables('-R', 'KUBE-MARK-MASQ', '1', '-j', 'MARK', '--set-xmark', '0x8000/0x8000')
      const web = 'KUBE-SVC-CDGGSHYLG3RE2FKL'
      const [first = ''] = iptables('-S', web)
        .split('\n')
        .filter((line) => line.startsWith('-A'))
      iptables('-D', web, '1')
      run('sh', '-c', `iptables-${backend} -t nat ${first}`)
      iptables('-N', 'KUBE-SVC-AAAAAAAAAAAAAAAA')
      const [last = ''] = iptables('-S', 'KUBE-SERVICES').split('\n').slice(-2)
      run('sh', '-c', `iptables-${backend} -t nat ${last.replace('-A', '-D')}`)
      run('sh', '-c', `iptables-${backend} -t nat ${last.replace('-A', '-I')}`)
      const seen = await differences('iptables', kubeProxy)
      t.same(
        seen.map((line) => line.replace(/ \| .*/, '')),
        [
          'nat PREROUTING',
          'nat INPUT',
          'nat KUBE-MARK-MASQ',
          'nat KUBE-MARK-MASQ',
          'nat KUBE-SERVICES',
          `nat ${web}`,
          'nat KUBE-SVC-AAAAAAAAAAAAAAAA',
        ],
      )
      t.match(seen[2], /-j MARK --or-mark 0x4000/)
      t.match(seen[5], /rule 1: .* \| rule 1: .* \| default\/web:http$/)
      const told = (await kubeProxy(...explain)).stdout
      t.match(told, /1\. nat PREROUTING\n.*\n.*\n +!! MISSING/)
      t.match(told, /sent on to 10\.96\.0\.10:80/, 'nobody jumps to the rules')
      await kubeProxy('cleanup')
      run(`iptables-${backend}`, '-t', 'mangle', '-X', 'KUBE-IPTABLES-HINT')
    },
  )
}

t.test('diff in userspace mode compares portal rules and listeners', { skip }, async (t) => {
  const daemon = await startDaemon(t, 'userspace')
  await expectClean(t)
  process.kill(daemon.pid, 'SIGSTOP')
  run('iptables', '-t', 'nat', '-D', 'KUBE-PORTALS-CONTAINER', '1')
  const lead = [
    '-p',
    'tcp',
    '-d',
    '1.2.3.4',
    '--dport',
    '80',
    '-j',
    'REDIRECT',
    '--to-ports',
    '1234',
  ]
  run('iptables', '-t', 'nat', '-A', 'KUBE-PORTALS-CONTAINER', ...lead)
  const seen = await differences('userspace', program)
  t.equal(seen.length, 2)
  t.match(
    seen[0],
    /^nat KUBE-PORTALS-CONTAINER \| .* --to-(ports |destination \S+:)\d+ \|  \| \S+\/\S+:\S+$/,
  )
  t.match(seen[1], /^nat KUBE-PORTALS-CONTAINER \|  \| .* --to-ports 1234 \| $/)
  await daemon.end('SIGKILL')
  const later = await differences('userspace', program)
  t.ok(later.some((line) => /^listeners \| somebody listens on tcp port \d+/.test(line)))
  await kubeProxy('cleanup')
})

for (const mode of ['iptables', 'userspace']) {
  t.test(
    `${mode} mode works beside a rule of nft that hides table nat from iptables-save`,
    { skip: skip || programSkip('iptables-nft') },
    async (t) => {
      const rulesOf = (chain: string) => run('nft', 'list', 'chain', 'ip', 'nat', chain)
      for (const chain of ['PREROUTING', 'POSTROUTING']) {
        run('iptables-nft', '-t', 'nat', '-P', chain, 'ACCEPT')
      }
      run('nft', 'add rule ip nat PREROUTING iifname wan0 tcp dport 2222 dnat to 192.0.2.9:22')
      run('nft', 'add rule ip nat POSTROUTING oifname wan0 masquerade')
      const first = await startDaemon(t, mode)
      await expectClean(t)
      await first.end('SIGKILL')
      const jumps = rulesOf('PREROUTING').match(/jump KUBE-.*/g)
      const second = await startDaemon(t, mode)
      await expectClean(t)
      t.strictSame(rulesOf('PREROUTING').match(/jump KUBE-.*/g), jumps, 'no jump is there twice')
      if (mode === 'iptables') {
        const { code, stderr } = await program('top', '--once')
        t.equal(code, 1, 'what iptables-save leaves out was not counted')
        t.match(stderr, /^kube-proxy: count .* iptables-save leaves out table nat, .*own\n$/)
      }
      process.kill(second.pid, 'SIGSTOP')
      run('iptables-nft', '-t', 'nat', '-D', 'PREROUTING', '1')
      const [lost] = await differences(mode, program)
      t.match(lost, /^nat PREROUTING \| .* -j KUBE-/)
      await second.end('SIGKILL')
      t.equal((await kubeProxy('cleanup')).code, 0)
      t.notMatch(run('nft', 'list', 'table', 'ip', 'nat'), /KUBE-/)
      t.match(rulesOf('PREROUTING'), /dnat to 192\.0\.2\.9:22/)
      t.match(rulesOf('POSTROUTING'), /masquerade/)
      run('nft', 'delete', 'table', 'ip', 'nat')
    },
  )
}

t.test(
  'diff compares addresses and listeners if Services are served without rules',
  { skip },
  async (t) => {
    const daemon = await startDaemon(t, 'userspace', '--userspace-portals', 'addresses')
    await expectClean(t)
    process.kill(daemon.pid, 'SIGSTOP')
    const asked = ['--mode', 'userspace', ...sourceFlags]
    // The command runs as on a machine without iptables, where `auto` has to notice that.
    const without = async (...args: string[]) => {
      const argv = withoutPrograms([...kubeProxyCommand, ...args])
      const { stdout, stderr } = await runCommand(...argv)
      if (stdout === '') throw new Error(stderr)
      return stdout
    }
    const ask = () => without('diff', ...asked)
    t.match(await ask(), /IPv4.*: the kernel holds what it should.\nIPv6.*: the kernel holds what/)
    run('ip', 'address', 'delete', '10.96.0.10/32', 'dev', 'lo')
    run('ip', 'address', 'add', '10.9.9.9/32', 'dev', 'lo', 'metric', String(addressMark))
    const spoilt = await ask()
    t.match(
      spoilt,
      /address 10\.96\.0\.10 of this machine \(default\/web:http\)\n +- the address\n/,
    )
    t.match(spoilt, /address 10\.9\.9\.9 of this machine\n +\+ the address\n/)
    t.notMatch(spoilt, /listen /)
    const explain = (target: string) => without('explain', target, '--live', ...asked)
    const unreachable = await explain('web')
    t.match(unreachable, /MISSING: the kernel does not have this now/)
    t.notMatch(unreachable, /10\.9\.9\.9/)
    run('ip', 'address', 'add', '10.96.0.10/32', 'dev', 'lo', 'metric', String(addressMark))
    run('ip', 'address', 'delete', '10.9.9.9/32', 'dev', 'lo')
    t.match(await ask(), /IPv4.*: the kernel holds what it should/)
    await daemon.end('SIGKILL')
    t.match(await ask(), /^ +- listen TCP 10\.96\.0\.10:80$/m)
    t.match(await ask(), /^ +- listen UDP \[fd00:10:96::53\]:53$/m)
    t.match(
      await explain('web'),
      /10\.96\.0\.10 of this machine[^]*MISSING: the kernel does not have/,
    )
    const nodePort = await explain('192.0.2.1:30080')
    t.match(nodePort, /any address of this machine[^]*MISSING: the kernel does not have this now/)
    t.match(nodePort, /100\.0 %\s+refused/)
    await kubeProxy('cleanup')
  },
)

t.test('diff counts what is wrong with objects, and names the differences', { skip }, async (t) => {
  const service = (name: string, ip: string) => ({
    ...{ apiVersion: 'v1', kind: 'Service' },
    metadata: {
      name,
      annotations: { 'kube-proxy-ts/balance': 'odd', 'kube-proxy-ts/weight': '?' },
    },
    spec: { clusterIP: ip, ports: [{ port: 80 }] },
  })
  const slice = {
    ...{ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', addressType: 'IPv4' },
    metadata: { name: 'web-1', labels: { 'kubernetes.io/service-name': 'web' } },
    ...{ ports: [{ name: '', port: 80 }], endpoints: [{ addresses: ['10.244.1.2'] }] },
  }
  const one = t.testdir({
    'slice.json': JSON.stringify(slice),
    'web.json': JSON.stringify(service('web', '10.96.0.20')),
    'other.json': JSON.stringify(service('other', '10.96.0.21')),
  })
  const { code, stderr } = await kubeProxy('diff', '--mode', 'nftables', '--manifests', one)
  t.equal(code, 1)
  t.match(stderr, /^\d warnings about objects; `kube-proxy explain SERVICE` shows those of one\n$/)
})

t.test('diff and explain name only what a second look finds, too', { skip }, async (t) => {
  const daemon = await startDaemon(t, 'nftables')
  await daemon.end('SIGKILL')
  const element = (verb: string, set: string, of: string) =>
    run('nft', verb, 'element', 'ip', 'kube-proxy', set, `{ ${of} }`)
  // Each look begins with this question to the running proxy.
  let looks = 0
  let mend = () => element('delete', 'cluster-ips', '10.9.9.9')
  const proxy = createServer((_, answer) => {
    if (++looks === 2) mend()
    answer.end('[]')
  })
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
  t.teardown(() => proxy.close())
  const { port } = proxy.address() as AddressInfo
  const about = ['--mode', 'nftables', ...sourceFlags, '--daemon', `127.0.0.1:${port}`]
  const ask = () => kubeProxy('diff', ...about)

  element('add', 'cluster-ips', '10.9.9.9')
  const gone = await ask()
  t.equal(gone.code, 0)
  t.match(gone.stdout, /^IPv4.*: the kernel holds what it should\.$/m)
  t.match(gone.stderr, /^1 of 1 difference was gone a second later$/m)

  looks = 0
  element('add', 'cluster-ips', '10.9.9.9')
  element('delete', 'service-ips', '10.96.0.10 . tcp . 80')
  const left = await ask()
  t.equal(left.code, 1)
  t.match(left.stdout, /: 1 difference\.\n\nmap service-ips/)
  t.match(left.stderr, /^1 of 2 differences was gone a second later$/m)

  looks = 0
  const web = '10.96.0.10 . tcp . 80'
  mend = () => element('add', 'service-ips', `${web} : goto service-SUSTUHLJ-default/web/tcp/http`)
  const told = await kubeProxy('explain', 'web', '--live', ...about)
  t.equal(looks, 2)
  t.match(told.stdout, /The kernel has every rule and element of this way\./)
  await kubeProxy('cleanup')
})

t.test('diff knows the families and the Node object that the proxy saw', { skip }, async (t) => {
  const ipv6 = (disabled: '0' | '1') =>
    writeFileSync('/proc/sys/net/ipv6/conf/all/disable_ipv6', disabled)
  ipv6('1')
  t.teardown(() => ipv6('0'))
  // Without the Node object the first of both addresses would have the node ports.
  run('ip', 'address', 'add', '192.0.2.2/24', 'dev', 'lo')
  t.teardown(() => run('ip', 'address', 'delete', '192.0.2.2/24', 'dev', 'lo'))
  const node = {
    ...{ apiVersion: 'v1', kind: 'Node', metadata: { name: 'node-1' } },
    spec: { podCIDRs: ['10.244.1.0/24'] },
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.2' }] },
  }
  const manifests = t.testdir({ 'node.json': JSON.stringify(node) })
  cpSync(examples, manifests, { recursive: true })
  await startDaemon(t, 'nftables', '--manifests', manifests, '--detect-local-mode', 'NodeCIDR')
  rmSync(join(manifests, 'node.json'))
  ipv6('0')
  const { code, stdout } = await kubeProxy('diff')
  t.equal(stdout, 'IPv4, nftables mode, 5 service ports: the kernel holds what it should.\n')
  t.equal(code, 0)
  await kubeProxy('cleanup')
})

t.test('what the kernel keeps is a difference, although the plan goes on to change', (t) => {
  const [chain, map] = [
    { kind: 'chain', name: 'service-web' },
    { kind: 'map', name: 'tcp-endpoints' },
  ] as const
  const owner = 'default/web:http'
  const look = (now: string, chainHas = 'dnat to a') => [
    { place: chain, expected: `dnat to ${now}`, found: undefined, owner },
    { place: chain, expected: undefined, found: chainHas, owner },
    { place: map, expected: `0 : ${now}`, found: '0 : a', owner },
    { place: map, expected: `9 : ${now}`, found: undefined, owner: 'default/db:' },
  ]
  const lasting = lastingDifferences(look('b'), look('c'))
  t.same(lasting, look('c').slice(0, 3))
  const written = lastingDifferences(look('b'), look('c', 'dnat to b'))
  t.same(written, look('c').slice(2, 3), 'a proxy that is one change behind is no fault')
  t.end()
})

t.test('diff ends with exit code 2 and advice if it cannot compare', { skip }, async (t) => {
  const none = await program('diff')
  t.equal(none.code, 2)
  t.match(none.stderr, /no proxy answers on http:\/\/127\.0\.0\.1:10249\/configz.*start kube-proxy/)
  const ipvs = await kubeProxy('diff', '--mode', 'ipvs', ...sourceFlags)
  t.equal(ipvs.code, 2)
  t.match(ipvs.stderr, /kube-proxy check/)
})
