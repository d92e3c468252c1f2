import { spawn } from 'node:child_process'
import t from 'tap'
import { KernelError, type KernelErrorKind } from '../../lib/errors.js'
import { runCommand, type Run } from '../../lib/kernel/command.js'
import { dropTable, Nft, type RulesetWriter } from '../../lib/kernel/nftables/nft.js'
import { watchCommits } from '../../lib/kernel/nftables-netlink/commit-watch.js'
import { NftMonitor } from '../../lib/kernel/nftables/monitor.js'
import { Guard } from '../../lib/modes/nftables/guard.js'
import { NftablesApplier } from '../../lib/modes/nftables/apply.js'
import { knownByFamily } from '../../lib/modes/known.js'
import { serviceBaseName } from '../../lib/modes/nftables/names.js'
import { nftablesPlanner, type NftablesPlan } from '../../lib/modes/nftables/plan.js'
import { missingIn } from '../../lib/modes/findings.js'
import { openNftables, probeNftables, writerVariable } from '../../lib/modes/nftables/probe.js'
import { contextOf } from '../support/mode-context.js'
import { NfTables, openNfTables } from '../../lib/kernel/nftables-netlink/nf-tables.js'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { createNetns, netnsSkip, programSkip, type NetworkNamespace } from '../support/netns.js'
import { canonicalListing } from '../support/nft-listing.js'
import { service, states, testSettings, type ServiceSpec, type States } from '../support/states.js'
import { untilTrue } from '../support/until.js'

const skip = netnsSkip || programSkip('nft')
const modeFile = new URL('../../lib/modes/nftables/index.js', import.meta.url).href

const inNetns =
  (netns: NetworkNamespace): Run =>
  (file, args, options) =>
    insideNamespace(netns.name, () => runCommand(file, args, options))

type WriterName = 'nft' | 'netlink'

function writerIn(netns: NetworkNamespace, name: WriterName): RulesetWriter {
  if (name === 'nft') return new Nft(inNetns(netns))
  const nfTables = insideNamespace(netns.name, () => openNfTables())
  t.teardown(() => nfTables.close())
  return nfTables
}

/** An applier of the mode in a namespace, with a clock that the test moves. */
function bench(netns: NetworkNamespace, name: WriterName) {
  const writer = writerIn(netns, name)
  const { context, resyncs } = contextOf()
  const clock = { ms: 0 }
  const known = knownByFamily<NftablesPlan>()
  const applier = new NftablesApplier({ known, writer, context, now: () => clock.ms })
  const list = () => canonicalListing(netns.exec('nft', 'list', 'ruleset'))
  return { applier, known, resyncs, clock, list }
}

/** Random numbers, the same in every run with the same seed. */
function randomOf(seed: number): (below: number) => number {
  let state = seed
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

const pickBy =
  (random: (below: number) => number) =>
  <T>(...choices: readonly T[]): T =>
    choices[random(choices.length)]!

/** A random Service. Addresses, node ports and endpoints are few, so that they often collide. */
function randomService(random: (below: number) => number, ipv6: boolean): ServiceSpec {
  const pick = pickBy(random)
  const ip = (v4: string, v6: string) => (ipv6 ? v6 : v4)
  const id = random(6)
  // Half of the Services have only a ClusterIP, so that their endpoints are in shared maps.
  const outside: Partial<ServiceSpec> = pick({}, randomOutside(random, ip))
  return service({
    name: `s${id}`,
    portName: pick('http', 'dns'),
    protocol: pick('TCP', 'UDP', 'SCTP'),
    clusterIp: ip(`10.96.0.${id + 1}`, `fd00:96::${id + 1}`),
    port: pick(53, 80),
    internalPolicyLocal: pick(true, false, false),
    externalPolicyLocal: pick(true, false),
    // Often a few endpoints that repeat, and sometimes more than fit in the smallest size.
    endpoints: Array.from({ length: random(pick(5, 5, 20)) }, () => ({
      ip: ip(`10.180.0.${1 + random(pick(6, 30))}`, `fd00:180::${1 + random(pick(6, 30))}`),
      local: pick(true, false),
      ready: pick(true, true, false),
      serving: true,
      terminating: pick(true, false),
    })),
    ...outside,
  })
}

function randomOutside(
  random: (below: number) => number,
  ip: (v4: string, v6: string) => string,
): Partial<ServiceSpec> {
  const pick = pickBy(random)
  return {
    nodePort: pick(0, 30001, 30002),
    externalIps: pick([], [ip('203.0.113.1', '2001:db8:5::1')]),
    loadBalancerIps: pick(
      [],
      [ip('203.0.113.1', '2001:db8:5::1')],
      [ip('203.0.113.2', '2001:db8:5::2')],
    ),
    sourceRanges: pick(
      [],
      [
        ip('192.0.2.0/24', '2001:db8::/32'),
        ip('192.0.2.128/25', '2001:db8:1::/48'),
        ip('198.51.100.0/23', 'fd01::/61'),
      ],
    ),
    affinitySeconds: pick(undefined, undefined, 10, 20),
  }
}

function mutate(cluster: States, random: (below: number) => number, ipv6: boolean): void {
  for (let left = 1 + random(3); left > 0; left--) {
    if (random(4) === 0) cluster.remove({ namespace: 'default', name: `s${random(6)}` })
    else cluster.put(randomService(random, ipv6))
  }
}

/** The listing without parts that no packet meets: chains without rules, unused sets (NF20). */
function withoutUnused(listing: string): string {
  const blocks = listing.split(/\n(?=table )/)
  const isUsed = (block: string) => {
    const [, kind, name] = /^table .*?\t?(chain|set) (\S+) \{/.exec(block) ?? []
    if (kind === 'chain') return block.trim().includes('\n')
    return !/^affinity-|-up-to-/.test(name ?? '') || listing.includes(`@${name}`)
  }
  return blocks.filter(isUsed).join('\n')
}

const combinations = [
  ['IPv4', 'nft', 'netlink'],
  ['IPv4', 'netlink', 'nft'],
  ['IPv6', 'netlink', 'nft'],
] as const

for (const [family, writer, other] of combinations) {
  void t.test(
    `after any changes by ${writer} the kernel holds the same as after a full write by ${other}, ${family}`,
    { skip },
    async (t) => {
      const [stepwise, atOnce] = [createNetns('nftables-a'), createNetns('nftables-b')]
      t.teardown(() => [stepwise, atOnce].forEach((netns) => netns.remove()))
      const [a, b] = [bench(stepwise, writer), bench(atOnce, other)]
      const random = randomOf(family === 'IPv4' ? writer.length : 6)
      const cluster = states(family)
      const plan = nftablesPlanner(testSettings)
      for (let step = 0; step < 30; step++) {
        mutate(cluster, random, family === 'IPv6')
        const state = cluster.take()
        await a.applier.apply(plan(state))
        a.clock.ms += 400
        const isSwept = step % 3 === 2
        if (isSwept) a.clock.ms += 1000
        await a.applier.sweep()
        b.known[family].forget()
        await b.applier.apply(nftablesPlanner(testSettings)(state))
        const [is, wanted] = [isSwept ? a.list() : withoutUnused(a.list()), b.list()]
        if (is !== wanted) t.equal(is, wanted, `step ${step}`)
      }
      t.equal(a.list(), b.list(), 'byte for byte')
      t.match(a.list(), /service-ips/)
      t.same(a.resyncs, [])
    },
  )
}

for (const way of ['netlink', 'nft'] as const) {
  void t.test(
    `NF22: a failed transaction of ${way} changes nothing, and a full one repairs`,
    { skip },
    async (t) => {
      const netns = createNetns('nftables-c')
      t.teardown(() => netns.remove())
      const { applier, known, list } = bench(netns, way)
      const plan = nftablesPlanner(testSettings)
      const cluster = states().put(service({ nodePort: 30080 }))
      const first = plan(cluster.take())
      await applier.apply(first)
      const good = list()
      netns.exec('nft', 'delete', 'element', 'ip', 'kube-proxy', 'cluster-ips', '{ 10.96.0.10 }')
      const spoilt = list()
      const second = plan(cluster.put(service({ clusterIp: '10.96.0.11', nodePort: 30080 })).take())
      await t.rejects(applier.apply(second), KernelError)
      t.equal(list(), spoilt, 'nothing of it was applied')
      t.equal(known.IPv4.value, undefined, 'nothing is known of what the kernel holds')
      await applier.apply(second)
      t.equal(list(), good.replaceAll('10.96.0.10', '10.96.0.11'))
      t.equal(known.IPv4.value, second)
      const third = plan(cluster.remove({ namespace: 'default', name: 'web' }).take())
      await applier.apply(third)
      t.notMatch(list(), /10\.96\.0\.11/)
    },
  )
}

void t.test(
  'NF04: a table that is written anew stays, so that no packet is looked up in one that is gone',
  { skip },
  async (t) => {
    const netns = createNetns('nftables-h')
    t.teardown(() => netns.remove())
    const nfTables = insideNamespace(netns.name, () => openNfTables())
    t.teardown(() => nfTables.close())
    const { context, resyncs } = contextOf()
    const nft = (...words: readonly string[]) => netns.exec('nft', ...words)
    const plan = nftablesPlanner(testSettings)
    const cluster = states().put(service({ affinitySeconds: 600, endpoints: 2, nodePort: 30080 }))
    const writeAnew = async (what: NftablesPlan, laterMs = 1000) => {
      const clock = { ms: 0 }
      const { reader } = nfTables
      const deps = { known: knownByFamily<NftablesPlan>(), writer: nfTables, reader, context }
      const applier = new NftablesApplier({ ...deps, tables: reader, now: () => clock.ms })
      await applier.apply(what)
      clock.ms += laterMs
      await applier.sweep()
    }
    const first = plan(cluster.take())
    const second = plan(cluster.put(service({ name: 'other', clusterIp: '10.96.0.11' })).take())
    const third = plan(cluster.remove({ namespace: 'default', name: 'web' }).take())
    const good = new Map<NftablesPlan, string>()
    for (const each of [first, second, third]) {
      nft('flush', 'ruleset')
      await writeAnew(each)
      good.set(each, canonicalListing(nft('list', 'ruleset')))
    }
    /** The handles of the table, and of its base chains and sets. */
    const handles = () =>
      nft('-a', 'list', 'ruleset').match(
        /(table ip kube-proxy|chain nat-\S+|map service-\S+) \{ # handle \d+/g,
      )
    const stayed = handles()
    for (const each of [second, first, third, first]) {
      await writeAnew(each)
      t.equal(canonicalListing(nft('list', 'ruleset')), good.get(each))
    }
    t.match(stayed, { length: 6 })
    t.same(handles(), stayed)

    const damages = {
      'an element is gone': ['delete element', 'cluster-ips { 10.96.0.10 }'],
      'a rule is there': ['insert rule', 'nat-prerouting drop'],
      'a chain is gone': ['flush chain', 'nat-prerouting'],
      'a chain is there': ['add chain', 'odd { type nat hook input priority 5; }'],
      'a set is there': ['add set', 'odd { type inet_service; elements = { 80 } }'],
      'a policy is drop': ['add chain', 'nat-output { policy drop; }'],
    }
    for (const [name, [verb = '', what = '']] of Object.entries(damages)) {
      nft(`${verb} ip kube-proxy ${what}`)
      t.not(canonicalListing(nft('list', 'ruleset')), good.get(first), `${name}: before`)
      await writeAnew(first)
      t.equal(canonicalListing(nft('list', 'ruleset')), good.get(first), name)
    }
    nft('add table ip kube-proxy { flags dormant; }')
    await writeAnew(first)
    t.notMatch(nft('list', 'ruleset'), 'dormant', 'the table is switched off')
    nft('add chain ip kube-proxy odd { type filter hook input priority 5; policy drop; }')
    nft('add rule ip kube-proxy odd accept')
    await writeAnew(first, 0)
    t.notMatch(nft('list', 'ruleset'), 'policy drop', 'a chain would drop everything when emptied')
    nft('add map ip kube-proxy odd { type inet_service : verdict; }')
    nft('add chain ip kube-proxy odder')
    nft('add element ip kube-proxy odd { 80 : goto odder }')
    await writeAnew(first)
    t.equal(canonicalListing(nft('list', 'ruleset')), good.get(first), 'a map leads to a chain')

    const [, affinity = ''] = /set (affinity-\S+)/.exec(nft('list', 'sets')) ?? []
    const otherForms = {
      'a chain has another priority':
        'add chain ip kube-proxy nat-output { type nat hook output priority 7; }',
      'a set has another key': 'add set ip kube-proxy cluster-ips { type inet_service; }',
      'a set has a timeout': 'add set ip kube-proxy cluster-ips { type ipv4_addr; timeout 5s; }',
      'a set takes one client': `add set ip kube-proxy ${affinity} { type ipv4_addr; size 1; flags dynamic,timeout; timeout 10m; }`,
    }
    for (const [name, command] of Object.entries(otherForms)) {
      nft('delete', 'table', 'ip', 'kube-proxy')
      nft('add', 'table', 'ip', 'kube-proxy')
      nft('add', 'chain', 'ip', 'kube-proxy', 'services')
      nft(command)
      await writeAnew(first)
      t.equal(canonicalListing(nft('list', 'ruleset')), good.get(first), name)
    }
    t.same(resyncs, [])
  },
)

for (const way of ['netlink', 'nft'] as const) {
  void t.test(
    `NF04, NF15: a table written anew by ${way} keeps the clients of session affinity`,
    { skip },
    async (t) => {
      const netns = createNetns('nftables-g')
      t.teardown(() => netns.remove())
      const writer = writerIn(netns, way)
      const reader = writer instanceof NfTables ? writer.reader : new Nft(inNetns(netns))
      const { context } = contextOf()
      const applier = () =>
        new NftablesApplier({ known: knownByFamily(), writer, reader, context, now: () => 0 })
      const plan = nftablesPlanner(testSettings)
      const cluster = states().put(service({ affinitySeconds: 20_000, endpoints: 2 }))
      const first = plan(cluster.take())
      await applier().apply(first)
      const nameOf = (ip: string) =>
        new RegExp(`set (affinity-\\S+__${ip}/8080)`).exec(
          netns.exec('nft', 'list', 'ruleset'),
        )?.[1]
      const [one, two] = ['10.180.0.1', '10.180.0.2'].map((ip) => nameOf(ip) ?? '')
      const add = (set: string, element: string) =>
        netns.exec('nft', 'add', 'element', 'ip', 'kube-proxy', set, `{ ${element} }`)
      // A busy machine may take minutes from here on.
      add(one ?? '', '192.0.2.7 expires 10000s')
      add(one ?? '', '192.0.2.9')
      add(two ?? '', '192.0.2.8')
      // An element for all other addresses is no client.
      add(two ?? '', '*')
      // Base chains with other hooks than ours are replaced too.
      netns.exec(
        'nft',
        'add',
        'chain',
        'ip',
        'kube-proxy',
        'odd',
        '{ type nat hook input priority 5; }',
      )
      const clients = (set: string | undefined) =>
        /elements = \{ ([^}]*) \}/.exec(
          netns.exec('nft', 'list', 'set', 'ip', 'kube-proxy', set ?? ''),
        )?.[1]
      await applier().apply(first)
      t.match(clients(one), /192\.0\.2\.7[^,]* expires 2h4[0-6]m/)
      t.match(clients(one), /192\.0\.2\.9[^,]* expires 5h(3[0-3]|2\d)m/)
      t.match(clients(two), /192\.0\.2\.8/)
      t.notMatch(netns.exec('nft', 'list', 'ruleset'), 'chain odd')
      const shorter = service({ affinitySeconds: 15_000, endpoints: 1 })
      await applier().apply(nftablesPlanner(testSettings)(cluster.put(shorter).take()))
      t.match(
        clients(one),
        /192\.0\.2\.9[^,]* expires 4h(10m|[0-9]m)/,
        'never longer than the set does',
      )
      t.notOk(nameOf('10.180.0.2'), 'an endpoint that is gone takes its clients along')
    },
  )

  void t.test(
    `NF15: clients of session affinity stay when its timeout changes, by ${way}`,
    { skip },
    async (t) => {
      const netns = createNetns('nftables-l')
      t.teardown(() => netns.remove())
      const writer = writerIn(netns, way)
      const reader = writer instanceof NfTables ? writer.reader : new Nft(inNetns(netns))
      const { context } = contextOf()
      const known = knownByFamily<NftablesPlan>()
      const applier = new NftablesApplier({ known, writer, reader, context, now: () => 0 })
      const plan = nftablesPlanner(testSettings)
      const cluster = states()
      const sync = async (affinitySeconds: number) => {
        const web = service({ affinitySeconds, endpoints: 1 })
        t.equal(
          (await applier.apply(plan(cluster.put(web).take()))).full,
          affinitySeconds === 20_000,
        )
        return netns.exec('nft', 'list', 'sets')
      }
      const [, name = ''] = /set (affinity-\S+)/.exec(await sync(20_000)) ?? []
      // A busy machine may take minutes from here on.
      const clients = '{ 192.0.2.7 expires 10000s, 192.0.2.9 }'
      netns.exec('nft', 'add', 'element', 'ip', 'kube-proxy', name, clients)
      const shorter = await sync(15_000)
      t.match(shorter, /192\.0\.2\.7[^,}]* expires 2h4[0-6]m/, 'the time it has left')
      t.match(
        shorter,
        /192\.0\.2\.9[^,}]* expires 4h(10m|[0-9]m)/,
        'never longer than the set does',
      )
      const longer = await sync(80_000)
      t.match(longer, /timeout 22h13m20s/)
      t.match(longer, /192\.0\.2\.7[^,}]* expires 2h4[0-6]m/)
      t.match(longer, /192\.0\.2\.9[^,}]* expires 4h(10m|[0-9]m)/)
    },
  )
}

void t.test(
  'NF20: unused chains are emptied at once and deleted a moment later',
  { skip },
  async (t) => {
    const netns = createNetns('nftables-d')
    t.teardown(() => netns.remove())
    const { applier, list, clock, resyncs } = bench(netns, 'netlink')
    const plan = nftablesPlanner(testSettings)
    const cluster = states().put(service({ affinitySeconds: 60 }))
    const first = plan(cluster.take())
    await applier.apply(first)
    const second = plan(cluster.remove({ namespace: 'default', name: 'web' }).take())
    await applier.apply(second)
    await applier.sweep()
    t.match(list(), /chain service-[A-Z2-7]{8}-\S+ \{\n\n/, 'still there, but empty')
    t.notMatch(list(), /vmap \{/)
    clock.ms = 1000
    await applier.sweep()
    t.notMatch(list(), /service-\w{8}-|endpoint-\w{8}-|affinity-/)
    // The affinity goes and comes back with another timeout, before its old set is deleted.
    const third = plan(cluster.put(service({ affinitySeconds: 60 })).take())
    await applier.apply(third)
    const fourth = plan(cluster.remove({ namespace: 'default', name: 'web' }).take())
    await applier.apply(fourth)
    await applier.apply(plan(cluster.put(service({ affinitySeconds: 90 })).take()))
    clock.ms = 3000
    await applier.sweep()
    t.match(list(), /timeout 1m30s/)
    t.same(resyncs, [])
  },
)

void t.test(
  'NF23, NF30: the probe reports what works here, also to a program without rights',
  { skip },
  async (t) => {
    const netns = createNetns('nftables-e')
    t.teardown(() => netns.remove())
    const deps = { kernelRelease: () => '6.1.0', env: {} }
    const weak: Run = (file, args, options) =>
      runCommand('setpriv', ['--reuid=65534', '--clear-groups', file, ...args], options)
    const refuse = (kind: KernelErrorKind) => () => {
      throw new KernelError(kind, `open netlink: ${kind}`)
    }
    const missing = async (nft: Nft, openNetlink: () => NfTables) => {
      const { findings, writer, netlink } = await probeNftables({ ...deps, nft, openNetlink }, [
        'IPv4',
        'IPv6',
      ])
      netlink?.close()
      return { writer: writer.name, missing: findings.filter((one) => one.required && !one.ok) }
    }
    const open = () => insideNamespace(netns.name, () => openNfTables())
    const gone: Run = () => Promise.reject(new KernelError('not-found', 'run nft: ENOENT'))
    t.same(await missing(new Nft(gone), open), { writer: 'netlink', missing: [] })
    t.same(await missing(new Nft(inNetns(netns)), refuse('unsupported')), {
      writer: 'nft',
      missing: [],
    })
    t.equal(netns.exec('nft', 'list', 'ruleset'), '', 'nothing is left of the trials')
    const chosen = await probeNftables(
      {
        ...deps,
        env: { [writerVariable]: 'nft' },
        nft: new Nft(inNetns(netns)),
        openNetlink: open,
      },
      ['IPv4'],
    )
    t.same([chosen.writer.name, chosen.netlink], ['nft', undefined])
    t.match(await missing(new Nft(weak), refuse('denied')), {
      missing: [{ what: /netlink/, fix: /CAP_NET_ADMIN/ }],
    })
    t.match(await missing(new Nft(weak), refuse('unsupported')), {
      missing: [{ seen: /not permitted/, fix: /CAP_NET_ADMIN/ }, {}],
    })
    t.match(await missing(new Nft(gone), refuse('unsupported')), {
      missing: [{ what: /nft 1\.0\.3/, fix: 'install package nftables' }],
    })
    const bad: Run = (file, args, options) =>
      args[0] === '--version'
        ? Promise.resolve({ code: 0, stdout: 'nftables v1.0.6.1 (x)\n', stderr: '' })
        : inNetns(netns)(file, args, options)
    t.match(await missing(new Nft(bad), refuse('unsupported')), {
      missing: [{ seen: '1.0.6.1', fix: /refused/ }],
    })
    t.same((await missing(new Nft(bad), open)).missing, [], 'by netlink it cannot hurt')

    const again = async (nft: Nft, openNetlink: () => NfTables) => {
      const { findings, netlink, ...opened } = await openNftables({ ...deps, nft, openNetlink }, [
        'IPv4',
      ])
      netlink?.close()
      return { writer: opened.writer.name, hash: opened.hasHash, missing: missingIn(findings) }
    }
    let trials = 0
    const counted: Run = (file, args, options) => {
      if (args.includes('-c')) trials++
      return inNetns(netns)(file, args, options)
    }
    await missing(new Nft(counted), refuse('unsupported'))
    t.equal(trials, 3, 'the rules of each family, and one hash for both')

    const works = { hash: true, missing: [] }
    t.same(await again(new Nft(gone), open), { ...works, writer: 'netlink' })
    t.same(await again(new Nft(inNetns(netns)), refuse('unsupported')), { ...works, writer: 'nft' })
    t.match(await again(new Nft(gone), refuse('unsupported')), {
      missing: [{ what: /nft 1\.0\.3/ }],
    })
  },
)

void t.test(
  'NF29: foreign changes of the table are noticed, and changes elsewhere are not',
  { skip },
  async (t) => {
    const netns = createNetns('nftables-f')
    const nfTables = insideNamespace(netns.name, () => openNfTables())
    t.teardown(() => {
      nfTables.close()
      netns.remove()
    })
    const { context, resyncs } = contextOf()
    const known = knownByFamily<NftablesPlan>()
    const guard = insideNamespace(
      netns.name,
      () =>
        new Guard({
          context,
          known,
          reader: nfTables.reader,
          watch: (handlers) =>
            watchCommits({
              tables: [{ family: 'ip', name: 'kube-proxy' }],
              port: nfTables.port(),
              generation: () => nfTables.generation(),
              ...handlers,
            }),
          tickMs: 100,
          verifyEveryMs: () => 1_000_000,
        }),
    )
    const applier = new NftablesApplier({
      known,
      writer: guard.guarded(nfTables),
      context,
      now: () => 0,
    })
    const plan = nftablesPlanner(testSettings)
    const cluster = states()
    const many = Array.from({ length: 400 }, (_, index) =>
      service({ name: `s${index}`, clusterIp: `10.96.${index >> 8}.${index & 255}` }),
    )
    const odd = randomOf(3)
    const ported = service({ name: 'ported', clusterIp: '10.97.0.1', nodePort: 31999 })
    const large = service({ name: 'large', clusterIp: '10.97.0.2', endpoints: 5 })
    const faithful = service({ name: 'faithful', clusterIp: '10.97.0.3', affinitySeconds: 600 })
    const limited = service({
      ...{ name: 'limited', clusterIp: '10.97.0.4', loadBalancerIps: ['203.0.113.4'] },
      sourceRanges: ['192.0.2.0/24', '198.51.100.0/24'],
    })
    const first = plan(
      cluster
        .put(
          ...many,
          ported,
          large,
          faithful,
          limited,
          ...many.slice(0, 20).map(() => randomService(odd, false)),
        )
        .take(),
    )
    await applier.apply(first)
    await guard.verify()
    t.same(resyncs, [], 'the kernel holds the plan')

    const end = new AbortController()
    const running = guard.run(end.signal)
    netns.exec('nft', 'add', 'table', 'ip', 'other')
    const changed = { ...many[1]!, endpoints: [{ ip: '10.180.0.9' }] }
    const second = plan(cluster.put(changed).take())
    await applier.apply(second)
    await seen(() => false, 1500)
    t.same(resyncs, [], 'neither our own changes nor other tables')

    netns.exec('nft', 'add', 'rule', 'ip', 'kube-proxy', 'services', 'counter')
    await untilTrue(() => resyncs.length > 0)
    t.match(resyncs, [/^process \d+ \(nft\) changed table kube-proxy$/])
    end.abort()
    await running

    const instead = (map: string, key: string, value: string) =>
      `delete element ip kube-proxy ${map} { ${key} } ; add element ip kube-proxy ${map} { ${key} : ${value} }`
    const withMore = [
      'flush chain ip kube-proxy mark-for-masquerade',
      'add rule ip kube-proxy mark-for-masquerade meta mark set meta mark | 0x4000 drop',
    ].join(' ; ')
    const inOtherOrder = [
      'flush chain ip kube-proxy filter-forward',
      'add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check',
      'add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check',
    ].join(' ; ')
    const { namespace, name, portName: port, protocol } = ported
    const ownChain = `service-${serviceBaseName({ namespace, name, port, protocol })}`
    const byNamedMap = [
      'add map ip kube-proxy mine { typeof numgen random mod 2 : ip daddr . tcp dport ; }',
      `flush chain ip kube-proxy ${ownChain}`,
      `add rule ip kube-proxy ${ownChain} meta l4proto tcp dnat ip to numgen random mod 2 map @mine`,
    ].join(' ; ')
    const faults: readonly (readonly [readonly string[], RegExp])[] = [
      [
        ['add', 'table', 'ip', 'kube-proxy', '{ flags dormant; }'],
        /^table ip kube-proxy has more than it should: flags dormant$/,
      ],
      [
        ['add', 'chain', 'ip', 'kube-proxy', 'nat-output', '{ policy drop; }'],
        /^chain nat-output has more than it should: policy drop$/,
      ],
      [
        ['add chain ip kube-proxy odd { type filter hook input priority 5; policy drop; }'],
        /^chain odd has more than it should: policy drop$/,
      ],
      [
        [
          'add chain ip kube-proxy odd { type filter hook input priority 5; } ; add rule ip kube-proxy odd drop ; add chain ip kube-proxy idle',
        ],
        /^chain odd has more than it should: a chain of 1 rule that nothing here asks for$/,
      ],
      [
        ['add', 'rule', 'ip', 'kube-proxy', 'masquerading', 'drop'],
        /chain masquerading has more than it should: rule \d/,
      ],
      [['flush', 'chain', 'ip', 'kube-proxy', 'services'], /chain services lacks /],
      [['flush', 'set', 'ip', 'kube-proxy', 'cluster-ips'], /set cluster-ips lacks /],
      [
        ['add', 'element', 'ip', 'kube-proxy', 'service-ips', '{ 1.2.3.4 . tcp . 5 : drop }'],
        /map service-ips has more than it should: 1\.2\.3\.4 \. tcp \. 5/,
      ],
      [
        ['add', 'element', 'ip', 'kube-proxy', 'service-ips', '{ * : drop }'],
        /map service-ips has more than it should: \*/,
      ],
      [
        [
          'delete map ip kube-proxy sctp-endpoints ; add map ip kube-proxy sctp-endpoints { type inet_service : ipv4_addr ; elements = { 80 : 192.0.2.1 } ; }',
        ],
        /map sctp-endpoints lacks typeof ip daddr \. sctp dport/,
      ],
      [
        [
          'delete map ip kube-proxy sctp-endpoints ; add map ip kube-proxy sctp-endpoints { typeof ip daddr . sctp dport . numgen random mod 2 : ip daddr . sctp dport ; size 9 ; }',
        ],
        /map sctp-endpoints lacks typeof ip daddr \. sctp dport/,
      ],
      [
        [
          'delete map ip kube-proxy sctp-endpoints ; add map ip kube-proxy sctp-endpoints { typeof ip daddr . sctp dport . numgen random mod 2 : ip daddr . sctp dport ; limit rate 1/hour ; }',
        ],
        /map sctp-endpoints lacks typeof ip daddr \. sctp dport/,
      ],
      [
        [
          'flush chain ip kube-proxy nat-output ; delete chain ip kube-proxy nat-output ; add chain ip kube-proxy nat-output { type nat hook output priority 5; } ; add rule ip kube-proxy nat-output jump services',
        ],
        /chain nat-output lacks type nat hook output priority -100/,
      ],
      [['delete', 'map', 'ip', 'kube-proxy', 'sctp-endpoints'], /map sctp-endpoints is missing/],
      [[instead('service-ips', '10.96.0.200 . tcp . 80', 'drop')], /map service-ips lacks /],
      [
        [instead('service-ips', '10.96.0.200 . tcp . 80', 'jump tcp-services')],
        /map service-ips lacks .* : goto tcp-services/,
      ],
      [
        [instead('service-ips', '10.96.0.200 . tcp . 80', 'goto tcp-draw-4')],
        /map service-ips lacks 10\.96\.0\.200/,
      ],
      [
        [instead('tcp-endpoints', '10.96.0.200 . 80 . 1', '192.0.2.1 . 80')],
        /map tcp-endpoints lacks 10\.96\.0\.200 \. 80 \. 1/,
      ],
      [
        ['delete', 'element', 'ip', 'kube-proxy', 'tcp-up-to-16', '{ 10.97.0.2 . 80 }'],
        /set tcp-up-to-16 lacks 10\.97\.0\.2 \. 80/,
      ],
      [
        ['add', 'element', 'ip', 'kube-proxy', 'tcp-up-to-16', '{ 10.96.0.200 . 80 }'],
        /set tcp-up-to-16 has more than it should: 10\.96\.0\.200 \. 80/,
      ],
      [[withMore], /chain mark-for-masquerade lacks meta mark set/],
      [
        [byNamedMap],
        /chain service-\S+ lacks meta l4proto tcp dnat ip to numgen random mod 2 map \{/,
      ],
      [[inOtherOrder], /chain filter-forward lacks rule 1: ct state new jump service-/],
      [['delete', 'table', 'ip', 'kube-proxy'], /table ip kube-proxy is missing/],
    ]
    for (const [args, reason] of faults) {
      known.IPv4.forget()
      await applier.apply(second)
      resyncs.length = 0
      netns.exec('nft', ...args)
      await guard.verify()
      t.match(resyncs, [reason])
    }
    known.IPv4.forget()
    await applier.apply(second)
    resyncs.length = 0
    netns.exec('nft', 'add', 'chain', 'ip', 'kube-proxy', 'extra')
    const remembering = /set (affinity-\S+-default\/faithful\S*)/.exec(
      netns.exec('nft', 'list', 'sets'),
    )
    const client = ['ip', 'kube-proxy', remembering?.[1] ?? '', '{ 10.180.0.77 }']
    netns.exec('nft', 'add', 'element', ...client)
    await guard.verify()
    t.same(resyncs, [], 'a chain that nothing leads to does no harm, nor does a client')
    const chain = ['ip', 'kube-proxy', 'mark-for-masquerade']
    const handle = /mark set .*handle (\d+)/.exec(
      netns.exec('nft', '-a', 'list', 'chain', ...chain),
    )
    const other = ['meta', 'mark', 'set', 'meta', 'mark', 'or', '0x8000']
    netns.exec('nft', 'replace', 'rule', ...chain, 'handle', handle?.[1] ?? '', ...other)
    await guard.verify()
    t.match(resyncs, [/chain mark-for-masquerade lacks meta mark set/])

    // Elements of a rule's own set, and whether a look-up is inverted: somebody else's rule looks the
    // same without them.
    for (const [rule, from, to] of [
      [/dnat ip to numgen random mod 2 map \{/, /10\.180\.0\.2/, '192.0.2.9'],
      [/numgen random mod 2 vmap \{/, /1 : goto \S+ /, '1 : drop '],
      [/ip saddr != \{/, /198\.51\.100\.0\/\d+/, '198.51.0.0/16'],
      [/ip daddr @cluster-ips/, /@/, '!= @'],
    ] as const) {
      known.IPv4.forget()
      await applier.apply(second)
      resyncs.length = 0
      netns.exec(
        'nft',
        replacing(netns, rule, (text) => text.replace(from, to)),
      )
      await guard.verify()
      t.match(resyncs, [/chain \S+ lacks .*[{@]/], String(rule))
      const lacking = rule.source.replaceAll('\\', '').split(' ')[0]
      t.match(resyncs.join(), lacking)
    }
    known.IPv4.forget()
    await applier.apply(second)
    resyncs.length = 0
    await guard.verify()
    t.same(resyncs, [], 'a full sync repairs it')
  },
)

/** Commands of `nft` that replace the first rule of that text by a changed one. */
function replacing(
  netns: NetworkNamespace,
  rule: RegExp,
  change: (text: string) => string,
): string {
  let chain = ''
  for (const line of netns.exec('nft', '-a', 'list', 'table', 'ip', 'kube-proxy').split('\n')) {
    chain = /^\tchain (\S+)/.exec(line)?.[1] ?? chain
    const [text = '', handle = ''] = line.trim().split(' # handle ')
    if (!rule.test(text)) continue
    const changed = change(text)
    if (changed === text) throw new Error(`nothing to change: ${text}`)
    // nft 1.0.6 dies of `replace rule` with ranges.
    const at = `ip kube-proxy ${chain} handle ${handle}`
    return `insert rule ${at} ${changed} ; delete rule ${at}`
  }
  throw new Error(`no rule like ${String(rule)}`)
}

void t.test(
  'NF29: without netlink foreign changes of the table are noticed, and changes elsewhere are not',
  { skip },
  async (t) => {
    const netns = createNetns('nftables-h')
    const end = new AbortController()
    t.teardown(() => {
      end.abort()
      netns.remove()
    })
    const { context } = contextOf()
    let foreign = 0
    const monitor = new NftMonitor({
      tables: [{ family: 'ip', name: 'kube-proxy' }],
      mark: 'written-by-us',
      onForeign: () => foreign++,
      onMissed: () => undefined,
      start: () =>
        insideNamespace(netns.name, () =>
          spawn('nft', ['monitor'], { stdio: ['ignore', 'pipe', 2] }),
        ),
    })
    const writer = monitor.guarded(new Nft(inNetns(netns)))
    const known = knownByFamily<NftablesPlan>()
    const applier = new NftablesApplier({ known, writer, context, now: () => 0 })
    const running = monitor.run(end.signal)
    await seen(() => false, 700)
    const plan = nftablesPlanner(testSettings)
    const cluster = states().put(service())
    let last = plan(cluster.take())
    await applier.apply(last)
    for (let count = 1; count < 6; count++) {
      const next = plan(cluster.put(service({ endpoints: count })).take())
      await applier.apply(next)
      last = next
      netns.exec('nft', 'add', 'table', 'ip', `kube-proxy-${count}`)
    }
    await seen(() => foreign > 0, 2500)
    t.equal(foreign, 0, 'neither our own changes nor other tables')
    netns.exec('nft', 'flush', 'chain', 'ip', 'kube-proxy', 'services')
    for (let count = 1; foreign === 0 && count < 3000; count++) {
      await applier.apply(plan(cluster.put(service({ endpoints: 1 + (count % 5) })).take()))
      await seen(() => foreign > 0, 100)
    }
    t.equal(foreign, 1, 'while we write, too')
    last = plan(cluster.put(service({ endpoints: 5 })).take())
    known.IPv4.forget()
    await applier.apply(last)
    await seen(() => false, 2500)
    t.equal(foreign, 1, 'and the repair is ours again')
    netns.exec('nft', 'delete', 'table', 'ip', 'kube-proxy')
    await untilTrue(() => foreign > 1)
    t.equal(foreign, 2)
    end.abort()
    await running
  },
)

void t.test(
  'NF28: cleanup without rights fails, and removes nothing',
  { skip: skip || programSkip('setpriv') },
  async (t) => {
    const netns = createNetns('nftables-j')
    t.teardown(() => netns.remove())
    const { applier } = bench(netns, 'netlink')
    await applier.apply(nftablesPlanner(testSettings)(states().put(service()).take()))
    const code = `
      const { mode } = await import(${JSON.stringify(modeFile)})
      await mode.cleanup({ log: { debug() {} } }).then(() => console.log('done'), (error) => console.log(error.kind))`
    const node = [process.execPath, '--input-type=module', '-e', code] as const
    const weak = ['--bounding-set=-net_admin', '--inh-caps=-net_admin'] as const
    t.equal(netns.exec('setpriv', ...weak, ...node).trim(), 'denied')
    t.match(netns.exec('nft', 'list', 'tables'), 'table ip kube-proxy')
    t.equal(netns.exec('setpriv', ...node).trim(), 'done')
    t.equal(netns.exec('nft', 'list', 'tables'), '')
  },
)

void t.test('NF29: diff reads by netlink, also where the program writes', { skip }, async (t) => {
  const netns = createNetns('nftables-k')
  t.teardown(() => netns.remove())
  const support = new URL('../support/states.js', import.meta.url).href
  const faithful = { name: 'faithful', clusterIp: '10.97.0.3', affinitySeconds: 600 }
  const code = `
    const { mode } = await import(${JSON.stringify(modeFile)})
    const { service, states, testConfig } = await import(${JSON.stringify(support)})
    const state = states().put(service(), service(${JSON.stringify(faithful)})).take()
    for (const { place, expected, found } of await mode.differences(state, testConfig))
      console.log(place.kind, place.name, expected ? 'lacks ' + expected : 'too much ' + found)`
  const node = [process.execPath, '--input-type=module', '-e', code] as const
  const differences = () => netns.exec('env', `${writerVariable}=nft`, ...node).trim()
  t.match(differences(), /^table ip kube-proxy lacks/, 'it is not there')
  const { applier } = bench(netns, 'nft')
  const plan = nftablesPlanner(testSettings)(states().put(service(), service(faithful)).take())
  await applier.apply(plan)
  t.equal(differences(), '')

  const map = ['ip', 'kube-proxy', 'service-ips'] as const
  netns.exec('nft', 'delete', 'element', ...map, '{ 10.97.0.3 . tcp . 80 }')
  netns.exec('nft', 'add', 'element', ...map, '{ 10.97.0.4 . tcp . 80 : drop }')
  const both =
    /lacks 10\.97\.0\.3 \. tcp \. 80 : goto service-.*\n.*too much 10\.97\.0\.4 \. tcp \. 80$/
  t.match(differences(), both, 'as many are missing as are too many')
})

void t.test('NF28: cleanup removes our tables, and other tables stay', { skip }, async (t) => {
  const netns = createNetns('nftables-i')
  t.teardown(() => netns.remove())
  const { applier } = bench(netns, 'netlink')
  netns.exec('nft', 'add', 'table', 'ip', 'other')
  await applier.apply(nftablesPlanner(testSettings)(states().put(service()).take()))
  for (const name of ['netlink', 'nft'] as const) {
    const table = { family: 'ip', name: 'kube-proxy' } as const
    await dropTable(writerIn(netns, name), table)
    t.equal(netns.exec('nft', 'list', 'tables').trim(), 'table ip other')
  }
})

/** Waits until the condition is true, but at most for this time. */
async function seen(isSo: () => boolean, ms: number): Promise<void> {
  const end = performance.now() + ms
  while (!isSo() && performance.now() < end) await new Promise((resolve) => setTimeout(resolve, 50))
}
