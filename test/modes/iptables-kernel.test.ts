import t, { type Test } from 'tap'
import { join } from 'node:path'
import { mkdtempSync, rmSync } from 'node:fs'
import { once } from 'node:events'
import { spawn, spawnSync } from 'node:child_process'
import { tmpdir } from 'node:os'
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { createNetns, netnsSkip, programSkip } from '../support/netns.js'
import { iptablesMode } from '../../lib/modes/iptables/index.js'
import { Sysctls } from '../../lib/kernel/sysctl.js'
import { configWith } from '../../lib/config/load.js'
import { runProgram } from '../../lib/kernel/iptables/command.js'
import { service, states, testConfig } from '../support/states.js'
import type { Applied, Mode, ModeContext } from '../../lib/modes/mode.js'
import type { Backend, Run } from '../../lib/kernel/iptables.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { NetworkNamespace } from '../support/netns.js'
import type { States } from '../support/states.js'
import { untilTrue } from '../support/until.js'

interface Logged {
  readonly level: string
  readonly message: string
  readonly fields: Record<string, unknown>
}

/**
 * Fails, because this process is not in the namespace of the node and must not use netlink for it.
 */
const elsewhere = () => {
  throw new Error('of another namespace')
}

/** A node in a namespace, with the mode on one backend and a list of the programs that it runs. */
class TestNode {
  readonly netns: NetworkNamespace
  readonly backend: Backend
  readonly calls: { file: string; args: readonly string[]; stdin: string }[] = []
  readonly logged: Logged[] = []
  readonly resyncs: string[] = []
  readonly gauges = new Map<string, number>()
  readonly counts = new Map<string, number>()
  /** The words before each program, for example to remove rights. */
  prefix: readonly string[] = []
  /** Changes the text of a restore on its way to the kernel. */
  tamper: (stdin: string) => string = (stdin) => stdin
  localnet = '0'

  constructor(backend: Backend) {
    this.backend = backend
    this.netns = createNetns(`iptables-mode-${backend}`)
  }

  get context(): ModeContext {
    const log = (level: string) => (fields: object, message: string) =>
      void this.logged.push({ level, message, fields: { ...fields } })
    return {
      log: { debug: log('debug'), info: log('info'), warn: log('warn'), error: log('error') },
      meter: {
        count: (name) => void this.counts.set(name, (this.counts.get(name) ?? 0) + 1),
        gauge: (name, labels, value) => {
          this.gauges.set(`${name} ${labels.table ?? ''} ${labels.ip_family ?? ''}`, value)
        },
        observe: () => undefined,
        forget: () => undefined,
      },
      resync: (reason) => void this.resyncs.push(reason),
    }
  }

  readonly run: Run = (file, args, options = {}) => {
    const stdin = this.tamper(options.stdin ?? '')
    this.calls.push({ file, args, stdin })
    const [program = '', ...argv] = [...this.prefix, file, ...args]
    return insideNamespace(this.netns.name, () => runProgram(program, argv, { ...options, stdin }))
  }

  get definition() {
    return iptablesMode({
      run: this.run,
      backend: this.backend,
      openAccounts: elsewhere,
      openGeneration: () => Promise.resolve(undefined),
      sysctls: {
        ensure: ({ name, value }) => {
          const [before, wanted] = [this.localnet, String(value)]
          this.localnet = wanted
          return { name, wanted, before, result: 'written', reason: '' }
        },
      },
    })
  }

  create(values: Readonly<Record<string, unknown>> = {}, family: IpFamily = 'IPv4'): Promise<Mode> {
    return this.definition.create(configWith(values), [family], this.context)
  }

  /** The rules of all tables, without counters and dates. */
  save(program = 'iptables'): string {
    return this.netns
      .exec(`${program}-${this.backend}-save`)
      .split('\n')
      .filter((line) => !line.startsWith('#'))
      .map((line) => line.replace(/\[\d+:\d+\]/, '[0:0]'))
      .join('\n')
  }

  restore(text: string): Promise<unknown> {
    const program = `iptables-${this.backend}-restore`
    return insideNamespace(this.netns.name, () =>
      runProgram(program, ['--noflush'], { stdin: text }),
    )
  }
}

/** Every iptables knows this match, but only kernels with IPVS have it. */
const ipvsMatch = ['-m', 'ipvs', '--ipvs']

const web = (endpoints: number) => service({ name: 'web', nodePort: 30080, endpoints })
const sticky = service({ name: 'sticky', clusterIp: '10.96.0.20', affinitySeconds: 60 })
const empty = service({ name: 'empty', clusterIp: '10.96.0.30', endpoints: 0 })

/** Takes the state and applies it, as the syncer does. */
class Sync {
  #mode: Mode
  #cluster: States

  constructor(mode: Mode, cluster: States) {
    this.#mode = mode
    this.#cluster = cluster
  }

  async once(options: { readonly full?: boolean } = {}): Promise<Applied> {
    if (options.full) this.#mode.forget()
    return this.#mode.apply(this.#mode.plan(this.#cluster.take()))
  }
}

for (const backend of ['nft', 'legacy'] as const satisfies readonly Backend[]) {
  const skip = netnsSkip || programSkip(`iptables-${backend}`)
  t.test(`${backend} backend`, { skip }, async (t) => {
    const onNode = (name: string, body: (t: Test, node: TestNode) => Promise<void>) =>
      t.test(name, async (t) => {
        const node = new TestNode(backend)
        try {
          await body(t, node)
        } finally {
          node.netns.remove()
        }
      })

    await onNode(
      'IT34 IT40 IT41: full syncs, partial syncs and syncs after a restart write the same rules',
      async (t, node) => {
        const mode = await node.create()
        const cluster = states().put(web(2), sticky, empty)
        const sync = new Sync(mode, cluster)
        t.match(await sync.once(), { full: true, failed: [] })
        t.equal(node.localnet, '1', 'IT34')
        node.calls.length = 0
        t.match(await sync.once(), { full: false })
        t.equal(node.calls.length, 0, 'nothing to do, nothing run')

        cluster.put(web(3), { ...sticky, endpoints: sticky.endpoints.slice(1) })
        cluster.remove(empty)
        t.match(await sync.once(), { full: false, failed: [] })
        t.same(
          node.calls.map(({ file }) => file),
          [`iptables-${backend}-restore`],
          'one process and no listing',
        )
        const partial = node.save()
        const fresh = new Sync(await node.create(), cluster)
        t.match(await fresh.once(), { full: true })
        t.same(
          sorted(node.save()),
          sorted(partial),
          'L18: a restart finds nothing to add or remove',
        )
      },
    )

    await onNode(
      'IT11: a change of settings makes 127.0.0.1 routable only with the rule that protects it',
      async (t, node) => {
        const mode = await node.create()
        const narrow = states('IPv4', { nodePortAddresses: ['192.0.2.0/24'] })
        await new Sync(mode, narrow.put(web(2))).once()
        t.equal(node.localnet, '0')
        t.notMatch(node.save(), '-A KUBE-FIREWALL')
        await new Sync(mode, states().put(web(2))).once()
        t.equal(node.localnet, '1')
        t.match(node.save(), /^-A KUBE-FIREWALL ! -s 127\.0\.0\.0\/8 -d 127\.0\.0\.0\/8 .* DROP$/m)
      },
    )

    await onNode(
      'an address that is external and of the load balancer leaves no rule behind',
      async (t, node) => {
        const cluster = states()
        const sync = new Sync(await node.create(), cluster)
        const ips = { externalIps: ['198.51.100.1'], loadBalancerIps: ['198.51.100.1'] }
        await sync.once()
        const before = node.save()
        for (const endpoints of [0, 2]) {
          cluster.put(service({ name: 'web', endpoints, ...ips }))
          t.match(await sync.once(), { failed: [] })
          cluster.put(service({ name: 'web', endpoints, ...ips, externalIps: [] }))
          t.match(await sync.once(), { full: false, failed: [] })
          cluster.put(service({ name: 'web', endpoints, ...ips }))
          t.match(await sync.once(), { full: false, failed: [] })
          cluster.remove(service({ name: 'web' }))
          t.match(await sync.once(), { full: false, failed: [] })
          t.equal(node.save(), before)
        }
      },
    )

    await onNode('IT51: both metrics are right after every sync', async (t, node) => {
      const mode = await node.create()
      const cluster = states().put(web(2), empty)
      const sync = new Sync(mode, cluster)
      const check = async (what: string) => {
        node.calls.length = 0
        await sync.once()
        const [written] = node.calls.filter(({ file }) => file.endsWith('-restore')).slice(-1)
        const tableOf = (text: string, table: string) =>
          new RegExp(`^\\*${table}\\n([^]*?)^COMMIT$`, 'm').exec(text)?.[1] ?? ''
        for (const table of ['nat', 'filter']) {
          const ours = /^-A KUBE-(?!FIREWALL)/gm
          const gauge = (name: string) =>
            node.gauges.get(`sync_proxy_rules_iptables_${name} ${table} IPv4`)
          t.equal(gauge('total'), tableOf(node.save(), table).match(ours)?.length ?? 0, what)
          const put = tableOf(written?.stdin ?? '', table).match(/^-[AI] (?!KUBE-FIREWALL)/gm) ?? []
          const jumps = tableOf(written?.stdin ?? '', table).match(/^-A KUBE-FIREWALL/gm) ?? []
          t.equal(gauge('last'), put.length + jumps.length, `${what}: written`)
        }
      }
      await check('full')
      cluster.put(web(5))
      await check('partial')
      cluster.put(sticky).remove(empty)
      await check('a Service more, one less')
      node.tamper = (stdin) => stdin.replaceAll('--seconds 61', '--nosuch')
      cluster.put({ ...sticky, affinitySeconds: 61 }, { ...sticky, name: 'n', affinitySeconds: 61 })
      await check('refused ones are not there')
    })

    await onNode(
      'IT05 IT06: a full sync is one restore, and keeps the chains of other programs',
      async (t, node) => {
        await node.restore(
          '*nat\n:OTHER - [0:0]\n:KUBE-SERVICES - [0:0]\n-A OTHER -j RETURN\n' +
            '-A KUBE-SERVICES -j OTHER\nCOMMIT\n',
        )
        const mode = await node.create()
        node.calls.length = 0
        await new Sync(mode, states().put(web(2))).once()
        const restores = node.calls.filter(({ file }) => file.endsWith('-restore'))
        t.equal(restores.length, 1)
        t.ok(restores[0]?.args.includes('--noflush'))
        t.same(restores[0]?.stdin.match(/^\*.*/gm)?.sort(), ['*filter', '*mangle', '*nat'])
        t.match(node.save(), '-A OTHER -j RETURN', 'not mentioned, not touched')
        t.notMatch(node.save(), '-A KUBE-SERVICES -j OTHER', 'declared, emptied')
      },
    )

    await onNode('IT46: flushed rules are noticed and repaired', async (t, node) => {
      const mode = await node.create({ 'iptables.syncPeriod': 200 })
      const sync = new Sync(mode, states().put(web(2), sticky))
      await sync.once()
      const good = node.save()
      const stop = new AbortController()
      const running = mode.run(stop.signal)
      const svc = /KUBE-SVC-[A-Z2-7]{16}/.exec(good)?.[0] ?? ''
      const attacks: [string, () => unknown][] = [
        ['all flushed and gone', () => node.restore('*nat\nCOMMIT\n').then(() => flush(node))],
        [
          'rules flushed, chains left',
          () => node.netns.exec(`iptables-${backend}`, '-t', 'nat', '-F'),
        ],
        [
          'one rule deleted',
          () => node.netns.exec(`iptables-${backend}`, '-t', 'nat', '-D', svc, '1'),
        ],
        ['a jump deleted', () => node.netns.exec(`iptables-${backend}`, '-D', 'FORWARD', '1')],
        ['jumps doubled', () => node.restore(good.replaceAll(/^-A \w+ -j KUBE-FIREWALL\n/gm, ''))],
      ]
      for (const [what, attack] of attacks) {
        node.resyncs.length = 0
        await attack()
        await untilTrue(() => node.resyncs.length > 0)
        t.match(node.resyncs[0], /IPv4 iptables rules were changed/, what)
        await sync.once({ full: true })
        t.same(sorted(node.save()), sorted(good), `${what}: repaired`)
      }
      node.calls.length = 0
      await untilTrue(() => node.calls.filter(({ args }) => args.includes('mangle')).length > 8)
      t.same(node.resyncs.length, 1, 'and left alone nothing is reported')
      stop.abort()
      await running
    })

    await onNode('IT46: a flush is noticed although syncs run all the time', async (t, node) => {
      const mode = await node.create({ 'iptables.syncPeriod': 200 })
      const cluster = states().put(web(2))
      const sync = new Sync(mode, cluster)
      await sync.once()
      const stop = new AbortController()
      const running = mode.run(stop.signal)
      node.netns.exec(`iptables-${backend}`, '-t', 'nat', '-F', 'KUBE-POSTROUTING')
      for (let count = 0; count < 5000 && node.resyncs.length === 0; count++) {
        cluster.put(web(2 + (count % 2)))
        await sync.once()
        await setImmediate()
      }
      t.match(node.resyncs[0], 'table nat was flushed: chain KUBE-POSTROUTING is empty')
      stop.abort()
      await running
    })

    await onNode(
      'IT44: the next change repairs a shared chain that another program edited',
      async (t, node) => {
        const mode = await node.create()
        const cluster = states().put(web(2), sticky)
        const sync = new Sync(mode, cluster)
        await sync.once()
        node.netns.exec(`iptables-${backend}`, '-t', 'nat', '-F', 'KUBE-SERVICES')
        cluster.remove(sticky)
        t.match(await sync.once(), { full: true, failed: [] })
        t.match(node.save(), /-A KUBE-SERVICES -d 10.96.0.10\/32/)
        t.match(
          node.logged.find(({ message }) => message.includes('writing all of them'))?.fields.line,
          backend === 'nft' ? /^-D KUBE-SERVICES/ : /./,
          'IT44: the failing line is in the log',
        )
      },
    )

    await onNode(
      'the Service of a rule that the kernel refuses is named, and the others are programmed',
      async (t, node) => {
        // The kernel seems to have no xt_recent.
        node.tamper = (stdin) => stdin.replaceAll('-m recent', '-m nosuch')
        const mode = await node.create()
        const cluster = states().put(web(2), sticky)
        const sync = new Sync(mode, cluster)
        const first = await sync.once()
        t.match(first.failed, [{ key: 'default/sticky:http/TCP', reason: /nosuch/ }])
        t.same([...node.counts], [['sync_proxy_rules_iptables_restore_failures_total', 1]])
        t.match(node.save(), /-A KUBE-SERVICES -d 10.96.0.10\/32/)
        t.notMatch(node.save(), '10.96.0.20')

        cluster.put(web(3))
        node.calls.length = 0
        const second = await sync.once()
        t.match(second, { full: false, failed: [{ key: 'default/sticky:http/TCP' }] })
        t.equal(node.calls.length, 1, 'it is not tried again with every change')
        t.match(node.save(), '10.180.0.3:8080')

        node.tamper = (stdin) => stdin
        cluster.put({ ...sticky, affinitySeconds: 61 })
        t.match(await sync.once(), { failed: [] }, 'changed, it is')
        t.match(node.save(), '--seconds 61')

        node.tamper = (stdin) => stdin.replaceAll('--seconds 62', '--nosuch')
        cluster.put({ ...sticky, affinitySeconds: 62 })
        t.match(await sync.once(), { failed: [{ key: 'default/sticky:http/TCP' }] })
        t.match(node.save(), '10.96.0.20', 'a Service that worked is not taken away')
      },
    )

    await onNode('rules that stay refused are logged once, not at every retry', async (t, node) => {
      const mode = await node.create({ 'iptables.syncPeriod': 1 })
      const cluster = states().put(web(2))
      const sync = new Sync(mode, cluster)
      await sync.once()
      const works = node.tamper
      const complaints = () =>
        node.logged.filter(({ level }) => level === 'warn' || level === 'error')
      const retry = async (failed: object) => {
        await sleep(2)
        t.match(await sync.once(), failed)
      }
      for (const times of [1, 2]) {
        node.tamper = (stdin) => stdin.replaceAll('-m recent', '-m nosuch')
        cluster.put({ ...sticky, affinitySeconds: 60 + times })
        for (let i = 0; i < 3; i++) await retry({ failed: [{ key: 'default/sticky:http/TCP' }] })
        t.equal(complaints().length, times)
        node.tamper = works
        await retry({ failed: [] })
      }
    })

    await onNode(
      'a Service with a refused rule in a shared chain only is named, and the others work',
      async (t, node) => {
        const ofEmpty = /(-d 10\.96\.0\.30\/32 .*)-m tcp --dport \d+/g
        node.tamper = (stdin) => stdin.replaceAll(ofEmpty, '$1-m nfacct --nfacct-name nosuch')
        const cluster = states().put(web(2), { ...empty, clusterIp: '10.96.0.30' })
        const { failed } = await new Sync(await node.create(), cluster).once()
        t.same(
          failed.map(({ key }) => key),
          ['default/empty:http/TCP'],
        )
        t.match(node.save(), /-A KUBE-SERVICES -d 10.96.0.10\/32/)
        t.notMatch(`${failed[0]?.reason} ${node.save()}`, /TRIAL/, 'which nobody knows')
      },
    )

    await onNode(
      'the Service of a rule with a match that this kernel lacks is named, and the others work',
      async (t, node) => {
        if (!lacksIpvs(node)) {
          t.comment('left out: this kernel has xt_ipvs, there is no match at hand that it lacks')
          return
        }
        // xt_ipvs replaces xt_recent: the tool knows both, but the kernel has no xt_ipvs.
        node.tamper = (stdin) => stdin.replaceAll(/-m recent .*(?= -j)/g, ipvsMatch.join(' '))
        const mode = await node.create()
        const cluster = states().put(web(2), sticky, {
          ...sticky,
          name: 'other',
          clusterIp: '10.96.0.21',
        })
        const { full, failed } = await new Sync(mode, cluster).once()
        t.equal(full, true)
        t.same(failed.map(({ key }) => key).sort(), [
          'default/other:http/TCP',
          'default/sticky:http/TCP',
        ])
        for (const { reason } of failed)
          t.match(reason, /ipvs.*missing kernel module|missing kernel module.*ipvs/)
        t.match(node.save(), /-A KUBE-SERVICES -d 10.96.0.10\/32/)
        t.notMatch(node.save(), /10.96.0.2[01]/)
      },
    )

    await onNode('L15 IT50: cleanup leaves the tables as they were', async (t, node) => {
      const other =
        '*nat\n:DOCKER - [0:0]\n-A POSTROUTING -j DOCKER\nCOMMIT\n' +
        '*filter\n:FORWARD DROP [0:0]\nCOMMIT\n*mangle\n:INPUT ACCEPT [0:0]\nCOMMIT\n'
      await node.restore(other)
      // Listing makes the tables, each with all its built-in chains.
      for (const table of ['nat', 'filter', 'mangle']) {
        node.netns.exec(`iptables-${backend}`, '-t', table, '-L', '-n')
      }
      const before = node.save()
      const mode = await node.create({ 'iptables.localhostNodePorts': false })
      await new Sync(mode, states().put(web(2), sticky, empty)).once()
      t.not(node.save(), before)
      await node.definition.cleanup(node.context)
      t.same(sorted(node.save()), sorted(before))
      await node.definition.cleanup(node.context)
    })

    await onNode('L18: a sync replaces the rules of kube-proxy', async (t, node) => {
      await node.restore(kubeProxyRules)
      const mode = await node.create()
      const cluster = states().put(web(2))
      await new Sync(mode, cluster).once()
      const after = node.save()
      t.notMatch(after, 'KUBE-SEP-', 'its endpoint chains are gone')
      t.notMatch(after, 'KUBE-SVC-OLDOLDOLDOLDOLDO')
      t.match(after, '-j DOCKER')
      t.equal(after.match(/-A PREROUTING .*KUBE-SERVICES/g)?.length, 1, 'one jump, not two')
      t.equal(after.match(/-A INPUT .*KUBE-NODEPORTS/g)?.length, 1)
    })

    await onNode('IT48: Service rules in the other backend are reported', async (t, node) => {
      const warnings = () => node.logged.filter(({ level }) => level === 'warn')
      await node.create()
      t.same(warnings(), [])
      const other = backend === 'nft' ? 'legacy' : 'nft'
      node.netns.exec(`iptables-${other}`, '-t', 'nat', '-N', 'KUBE-SERVICES')
      await node.create()
      t.match(warnings(), [{ message: /kube-proxy cleanup/, fields: { alsoIn: other } }])
      await node.definition.cleanup(node.context)
      node.logged.length = 0
      await node.create()
      t.same(warnings(), [], 'and that does remove them')
    })

    await onNode('an error names the missing CAP_NET_ADMIN', async (t, node) => {
      node.prefix = ['setpriv', '--bounding-set=-net_admin', '--inh-caps=-net_admin']
      await t.rejects(node.create(), /CAP_NET_ADMIN/)
      const findings = await node.definition.probe(node.context)
      t.match(findings[0], { ok: false, required: true, fix: /CAP_NET_ADMIN/ })
    })

    await onNode('the probe tries what rules need, and leaves nothing', async (t, node) => {
      const before = node.save()
      const findings = await node.definition.probe(node.context)
      t.same(
        findings.filter(({ ok }) => !ok),
        [],
      )
      t.ok(findings.some(({ what }) => what === 'iptables match bpf'))
      t.same(ruleLines(node.save()), ruleLines(before))
    })

    await onNode('IT49: without ip6tables IPv4 works', async (t, node) => {
      const { run } = node
      const without = iptablesMode({
        backend,
        run: (file, args, options) =>
          file.startsWith('ip6')
            ? runProgram('/nonexistent/ip6tables', [])
            : run(file, args, options),
        openAccounts: elsewhere,
        openGeneration: () => Promise.resolve(undefined),
        sysctls: new Sysctls('/nonexistent'),
      })
      const mode = await without.create(testConfig, ['IPv4', 'IPv6'], node.context)
      t.match(node.logged.find(({ level }) => level === 'warn')?.fields, { family: 'IPv6' })
      t.match(await new Sync(mode, states().put(web(2))).once(), { full: true })
      const six = states('IPv6').put(service({ clusterIp: 'fd00:96::1' }))
      t.match(await new Sync(mode, six).once(), { objects: 0, failed: [] })
    })

    await onNode('the kernel accepts the IPv6 rules', async (t, node) => {
      const mode = await node.create({}, 'IPv6')
      const six = states('IPv6').put(
        service({ clusterIp: 'fd00:96::1', nodePort: 30080, endpoints: 2 }),
        service({ name: 's', clusterIp: 'fd00:96::2', affinitySeconds: 60, endpoints: 2 }),
        service({ name: 'e', clusterIp: 'fd00:96::3', endpoints: 0 }),
      )
      t.match(await new Sync(mode, six).once(), { failed: [] })
      t.match(node.save('ip6tables'), '--to-destination [fd00:180::1]:8080')
    })

    const lockTest = backend === 'legacy' ? onNode : undefined
    await lockTest?.('IT47: a sync waits for the xtables lock of others', async (t, node) => {
      const folder = mkdtempSync(join(tmpdir(), 'xtables-lock-'))
      const lockFile = join(folder, 'lock')
      process.env.XTABLES_LOCKFILE = lockFile
      try {
        const releaseSoon = await holdLock(lockFile)
        setTimeout(() => void releaseSoon(), 6000)
        const findings = await node.definition.probe(node.context)
        t.same(
          findings.filter(({ ok }) => !ok),
          [],
          'is no reason to think that iptables does not work',
        )
        const mode = await node.create({ 'iptables.syncPeriod': 30_000 })
        const cluster = states().put(web(2))
        const sync = new Sync(mode, cluster)
        await sync.once()
        cluster.put(web(3))
        const release = await holdLock(lockFile)
        setTimeout(() => void release(), 7000)
        let ticks = 0
        const ticking = setInterval(() => ticks++, 100)
        t.match(await sync.once(), { full: false, failed: [] }, 'is waited for')
        clearInterval(ticking)
        t.ok(ticks > 5, 'and everything else goes on')
        t.match(node.logged.at(-1), {
          level: 'warn',
          message: /the xtables lock is held, waiting/,
          fields: { holder: /^flock \(pid \d+\)$/ },
        })
        t.match(node.save(), '10.180.0.3:8080')

        const impatient = await node.create({ 'iptables.syncPeriod': 100 })
        const other = new Sync(impatient, cluster)
        const releaseLate = await holdLock(lockFile)
        cluster.put(web(4))
        t.match(await other.once().catch((error: unknown) => error), { kind: 'busy' })
        await releaseLate()
        t.match(await other.once(), { full: true, failed: [] }, 'nothing is lost')
        t.match(node.save(), '10.180.0.4:8080')

        const ending = await node.create({ 'iptables.syncPeriod': 300_000 })
        const last = new Sync(ending, cluster)
        await last.once()
        await ending.run(AbortSignal.abort())
        const releaseLast = await holdLock(lockFile)
        cluster.put(web(5))
        node.logged.length = 0
        const ended = last.once().catch((error: unknown) => error)
        await untilTrue(() => node.logged.some(({ message }) => /lock is held/.test(message)))
        await releaseLast()
        t.match(await ended, { kind: 'busy' }, 'a process that ends does not wait on')
      } finally {
        delete process.env.XTABLES_LOCKFILE
        rmSync(folder, { recursive: true })
      }
    })
  })
}

function sorted(text: string): string[] {
  return text.split('\n').sort()
}

/**
 * The rules and own chains. Tables and built-in chains are left out, because reading makes them.
 */
function ruleLines(text: string): string[] {
  return text.split('\n').filter((line) => /^(-A|:.* - )/.test(line))
}

function lacksIpvs({ netns, backend }: TestNode): boolean {
  const argv = ['netns', 'exec', netns.name, `iptables-${backend}`, '-A', 'INPUT', ...ipvsMatch]
  return spawnSync('ip', argv).status !== 0
}

/** Starts a program that holds the lock. The result releases it. */
async function holdLock(lockFile: string): Promise<() => Promise<unknown>> {
  const holder = spawn('flock', [lockFile, 'cat'], { stdio: ['pipe', 'pipe', 'inherit'] })
  holder.stdin.write('held\n')
  await once(holder.stdout, 'data')
  return () => {
    holder.stdin.end()
    return once(holder, 'exit')
  }
}

function flush(node: TestNode): void {
  for (const table of ['nat', 'filter', 'mangle']) {
    node.netns.exec(`iptables-${node.backend}`, '-t', table, '-F')
    node.netns.exec(`iptables-${node.backend}`, '-t', table, '-X')
  }
}

/** What kube-proxy 1.36 leaves on a node: jumps, endpoint chains, a removed Service. */
const kubeProxyRules = `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-OLDOLDOLDOLDOLDO - [0:0]
:KUBE-SEP-OLDOLDOLDOLDOLDO - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -m comment --comment "default/old cluster IP" -m tcp -p tcp -d 10.96.0.99 --dport 80 -j KUBE-SVC-OLDOLDOLDOLDOLDO
-A KUBE-SVC-OLDOLDOLDOLDOLDO -m comment --comment "default/old -> 10.180.0.9:80" -j KUBE-SEP-OLDOLDOLDOLDOLDO
-A KUBE-SEP-OLDOLDOLDOLDOLDO -s 10.180.0.9 -j KUBE-MARK-MASQ
-A KUBE-SEP-OLDOLDOLDOLDOLDO -m tcp -p tcp -j DNAT --to-destination 10.180.0.9:80
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-NODEPORTS - [0:0]
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
COMMIT
`
