/** The rules of many Services in a real kernel: they move into sub-chains and out again. */
import t from 'tap'
import { Iptables, rule } from '../../../lib/kernel/iptables.js'
import { userspacePlanner } from '../../../lib/modes/userspace/plan.js'
import {
  withoutSubChains,
  type PlacedRule,
} from '../../../lib/modes/userspace/portals/sub-chains.js'
import {
  IptablesPortals,
  readPortals,
} from '../../../lib/modes/userspace/portals/iptables-portals.js'
import { openIptables } from '../../../lib/modes/userspace/portals/open-portals.js'
import { fixedRules, placeRules } from '../../../lib/modes/userspace/render.js'
import { contextOf } from '../../support/mode-context.js'
import { enterPrivateNetns } from '../../support/private-netns.js'
import { ForeignCommits } from '../../../lib/modes/foreign-commits.js'
import { runProgram } from '../../../lib/kernel/iptables/command.js'
import type { Run } from '../../../lib/kernel/iptables.js'
import { service, states, testSettings } from '../../support/states.js'
import type { IpFamily } from '../../../lib/state/ip.js'
import { runSync } from '../../support/run-sync.js'

const skip = enterPrivateNetns() ?? false
/** How many Services there are, with three rules each. */
const many = 400

function rulesOf(
  family: IpFamily,
  count: number,
  firstPort = 33_000,
): Map<string, readonly PlacedRule[]> {
  const cluster = states(family)
  for (let number = 0; number < count; number++) {
    const last = (number + 1).toString(16)
    const high = 96 + (number >> 8)
    cluster.put(
      service({
        name: `web-${number}`,
        clusterIp: family === 'IPv4' ? `10.${high}.0.${number & 255}` : `fd00:10:96::${last}`,
        endpoints: ['ready'].map(() => ({
          ip: family === 'IPv4' ? '10.180.0.1' : 'fd00:180::1',
          port: 8080,
        })),
      }),
    )
  }
  const plan = userspacePlanner(testSettings)(cluster.take())
  const rules = new Map<string, readonly PlacedRule[]>()
  let port = firstPort
  for (const [key, { rules: portal }] of plan.services) {
    rules.set(key, placeRules(portal, { cluster: String(port++) }))
  }
  return rules
}

for (const backend of ['nft', 'legacy'] as const) {
  for (const family of ['IPv4', 'IPv6'] as const) {
    t.test(`${family} rules of ${many} Services, iptables-${backend}`, { skip }, async (t) => {
      const iptables = await Iptables.open({ family, backend })
      const options = {
        fixed: fixedRules({ portRange: undefined, logsRefused: true }),
      }
      const portals = new IptablesPortals(iptables, options)
      const program = family === 'IPv4' ? 'iptables' : 'ip6tables'
      const save = () => runSync(`${program}-${backend}-save`).stdout
      const few = rulesOf(family, 5)
      await portals.replaceAll(few)
      t.match(save(), /-A KUBE-PORTALS-CONTAINER -d \S+ -p tcp .*web-1/, 'as the original')
      t.ok(await portals.isIntact())

      const all = rulesOf(family, many)
      await portals.change(all)
      const text = save()
      t.notMatch(text, /-A KUBE-PORTALS-CONTAINER -d \S+ -p tcp/)
      t.equal(text.match(/^-A KUBE-PORTALS-CONTAINER-[0-9A-F]{2} .*DNAT/gm)?.length, many)
      t.equal(text.match(/^-A KUBE-PORTALS-HOST-[0-9A-F]{2} .*DNAT/gm)?.length, many)
      const guards = /^-A KUBE-PORTALS-DIRECT-[0-9A-F]{2} .*KUBE-PORTALS-LISTENER$/gm
      t.equal(text.match(guards)?.length, many)
      t.ok(await portals.isIntact())
      const flat = withoutSubChains(await readPortals(iptables))
      const chains = flat.find(({ table }) => table === 'nat')?.chains
      t.equal(chains?.get('KUBE-PORTALS-HOST')?.rules.length, many, 'who compares sees one chain')
      t.notOk([...(chains?.keys() ?? [])].some((name) => /-[0-9A-F]{2}$/.test(name)))
      const [first = ''] = all.keys()
      await portals.change(new Map([[first, []]]))
      t.ok(await portals.isIntact())
      t.equal(save().match(/CONTAINER-.* DNAT /g)?.length, many - 1)

      const [, chain = ''] = /^-A (KUBE-PORTALS-HOST-\S+)/m.exec(text) ?? []
      t.equal(runSync(`${program}-${backend}`, ['-t', 'nat', '-F', chain]).status, 0)
      t.notOk(await portals.isIntact(), 'a flushed sub-chain is seen')
      await portals.replaceAll(all)
      t.ok(await portals.isIntact())

      const restarted = new IptablesPortals(iptables, options)
      await restarted.replaceAll(few)
      t.notMatch(save(), /KUBE-PORTALS-\w+-/, 'sub-chains of an earlier run go')
      await restarted.change(all)
      await restarted.remove()
      t.notMatch(save(), /KUBE-(?!PORTALS-DRAIN)/, 'no rule leads here')
      await restarted.drained()
      t.notMatch(save(), /KUBE-/, 'and so does everything at the end')
    })
  }
}

/*
 * iptables-nft 1.8.7 itself is run by `npm run kernels -- --tools bullseye`. Here the masks it takes
 * are held, and that the kernel leads each address to one sub-chain.
 */
for (const family of ['IPv4', 'IPv6'] as const) {
  t.test(`${family} rules of many Services, as of iptables-nft 1.8.7`, { skip }, async (t) => {
    const run: Run = async (file, args, options) =>
      args[0] === '--version'
        ? { code: 0, signal: null, stdout: 'iptables v1.8.7 (nf_tables)', stderr: '' }
        : runProgram(file, args, options)
    const iptables = await Iptables.open({ family, backend: 'nft', run })
    const options = { fixed: fixedRules({ portRange: undefined, logsRefused: true }) }
    const portals = new IptablesPortals(iptables, options)
    await portals.replaceAll(rulesOf(family, many))
    t.ok(await portals.isIntact())
    const nat = (await readPortals(iptables)).find(({ table }) => table === 'nat')
    for (const chain of ['KUBE-PORTALS-CONTAINER', 'KUBE-PORTALS-HOST']) {
      const rules = nat?.chains.get(chain)?.rules ?? []
      const jumps = rules.filter((rule) => / KUBE-PORTALS-\w+-[0-9A-F]{2}$/.test(rule))
      t.equal(new Set(jumps.map((rule) => rule.match(/-d (\S+)/)?.[1])).size, 2 * 64)
      for (const rule of jumps) t.match(rule, family === 'IPv4' ? '/128.0.0.63 ' : '/8000::3f ')
    }
    await portals.remove()
    await portals.drained()
  })
}

for (const backend of ['nft', 'legacy'] as const) {
  t.test(
    `older rules that another program restores are found, iptables-${backend}`,
    { skip },
    async (t) => {
      const run = (program: string, args: string[], input = '') => {
        const { status, stdout, stderr } = runSync(program, args, input)
        t.equal(status, 0, stderr)
        return stdout
      }
      const options = {
        fixed: fixedRules({ portRange: undefined, logsRefused: true }),
      }
      const iptables = await Iptables.open({ family: 'IPv4', backend })
      await new IptablesPortals(iptables, options).replaceAll(rulesOf('IPv4', 5))
      const older = run(`iptables-${backend}-save`, [])

      const portals = new IptablesPortals(iptables, options)
      t.ok(await portals.isIntact(), 'nothing is expected before the first rules')
      const rules = rulesOf('IPv4', 5, 43_000)
      await portals.replaceAll(rules)
      t.ok(await portals.isIntact())
      run(`iptables-${backend}-restore`, [], older)
      t.notOk(await portals.isIntact(), 'as many rules, to ports of another process')
      await portals.replaceAll(rules)
      t.ok(await portals.isIntact())

      const jump = ['-m', 'conntrack', '--ctstate', 'NEW', '-j', 'KUBE-PORTALS-REFUSE']
      run(`iptables-${backend}`, ['-R', 'OUTPUT', '1', ...jump.with(3, 'INVALID')])
      t.notOk(await portals.isIntact(), 'a jump for other packets')
      await portals.replaceAll(rules)
      run(`iptables-${backend}`, ['-A', 'OUTPUT', '-j', 'ACCEPT'])
      run(`iptables-${backend}`, ['-t', 'nat', '-N', 'OTHERS'])
      t.ok(await portals.isIntact(), 'rules of others are no concern')
      const direct = (action: string) =>
        run(`iptables-${backend}`, [
          action,
          ...'KUBE-PORTALS-LISTENER -p udp --dport 9 -j DROP'.split(' '),
        ])
      direct('-A')
      t.notOk(await portals.isIntact(), 'one more rule')
      direct('-D')
      t.ok(await portals.isIntact())
      await portals.remove()
    },
  )
}

/** Where a reading takes so long that syncs no longer wait for it. */
class Disturbed extends ForeignCommits {
  override async undisturbed(read: () => Promise<unknown>): Promise<number | undefined> {
    await read()
    return this.mark
  }
}

t.test(
  'a check changes nothing, and takes nothing for a difference that a sync changes meanwhile',
  { skip },
  async (t) => {
    let reads = 0
    let duringRead: (() => Promise<unknown>) | undefined
    const spying: Run = async (file, args, options) => {
      const isRead = file.endsWith('-save')
      const work = isRead ? duringRead : undefined
      if (work) duringRead = undefined
      if (isRead) reads++
      await work?.()
      return runProgram(file, args, options)
    }
    const iptables = await Iptables.open({ family: 'IPv4', backend: 'legacy', run: spying })
    let mark = 1
    const foreign = new Disturbed(() => mark)
    const options = {
      fixed: fixedRules({ portRange: undefined, logsRefused: true }),
      foreign,
    }
    const portals = new IptablesPortals(iptables, options)
    const rules = rulesOf('IPv4', 5)
    await portals.replaceAll(rules)
    const [first = ''] = rules.keys()
    reads = 0
    duringRead = () => portals.change(new Map([[first, []]]))
    t.ok(await portals.isIntact(), 'what a sync removed while it was read is not missing')
    t.equal(reads, 1)
    t.ok(await portals.isIntact(), 'it proved nothing about those rules')
    t.equal(reads, 2)
    t.ok(await portals.isIntact())
    t.equal(reads, 2, 'nobody has written since')
    mark++
    duringRead = () => portals.replaceAll(rules)
    t.ok(await portals.isIntact())
    t.ok(await portals.isIntact())
    await portals.remove()
    t.ok(await portals.isIntact())
  },
)

t.test('a flush that is repeated while the rules are read is repaired', { skip }, async (t) => {
  let mark = 1
  let duringRead: (() => void) | undefined
  const spying: Run = (file, args, options) => {
    if (file.endsWith('-save')) duringRead?.()
    return runProgram(file, args, options)
  }
  const flush = () => {
    mark++
    const chain = ['-t', 'nat', '-F', 'KUBE-PORTALS-CONTAINER']
    t.equal(runSync('iptables-legacy', chain).status, 0)
  }
  const iptables = await Iptables.open({ family: 'IPv4', backend: 'legacy', run: spying })
  const fixed = fixedRules({ portRange: undefined, logsRefused: true })
  const foreign = new Disturbed(() => mark)
  const options = { fixed, foreign, log: contextOf().context.log }
  const portals = new IptablesPortals(iptables, options)
  const rules = rulesOf('IPv4', 5)
  await portals.replaceAll(rules)
  flush()
  t.notOk(await portals.isIntact())
  await portals.replaceAll(rules)
  duringRead = flush
  t.notOk(await portals.isIntact())
  duringRead = undefined
  await portals.replaceAll(rules)
  t.ok(await portals.isIntact())
  await portals.remove()
})

t.test(
  'a rule in other words is written anew once, also where a sync waits',
  { skip },
  async (t) => {
    let duringRead: (() => void) | undefined
    const inOtherWords: Run = async (file, args, options = {}) => {
      const { onOutput } = options
      if (!file.endsWith('-save') || !onOutput) return runProgram(file, args, options)
      duringRead?.()
      const read = await runProgram(file, args)
      onOutput(
        read.stdout.replace(/-d 10\.96\.0\.1\/32/g, '-d 10.96.0.1/255.255.255.255 --other-words'),
      )
      return { ...read, stdout: '' }
    }
    const iptables = await Iptables.open({ family: 'IPv4', backend: 'legacy', run: inOtherWords })
    const fixed = fixedRules({ portRange: undefined, logsRefused: true })
    const foreign = new ForeignCommits(() => 1)
    const options = { fixed, foreign, log: contextOf().context.log }
    const portals = new IptablesPortals(iptables, options)
    const rules = rulesOf('IPv4', 5)
    await portals.replaceAll(rules)
    t.notOk(await portals.isIntact())
    await portals.replaceAll(rules)
    let waiting: Promise<unknown> = Promise.resolve()
    duringRead = () => {
      waiting = foreign.around(1, () => new Promise(setImmediate))
    }
    t.ok(await portals.isIntact())
    await waiting
    duringRead = undefined
    await portals.remove()
  },
)

t.test('userspace mode needs DNAT, and no REDIRECT', { skip }, async (t) => {
  const without =
    (target: string): Run =>
    (...command) =>
      command[2]?.stdin?.includes(`-j ${target}`) === true
        ? Promise.resolve({ code: 2, stdout: '', stderr: `Couldn't load target \`${target}'` })
        : runProgram(...command)
  for (const family of ['IPv4', 'IPv6'] as const) {
    await openIptables(family, without('REDIRECT'))
    const message = /couldn't load target `DNAT'/
    await t.rejects(openIptables(family, without('DNAT')), { message }, family)
  }
})

t.test('rules in another order are found', { skip }, async (t) => {
  const iptables = await Iptables.open({ family: 'IPv4', backend: 'nft' })
  const options = {
    fixed: fixedRules({ portRange: { from: 30_000, to: 30_100 }, logsRefused: false }),
  }
  const portals = new IptablesPortals(iptables, options)
  await portals.replaceAll(new Map())
  t.ok(await portals.isIntact())
  const direct = ['KUBE-PORTALS-LISTENER', '1']
  t.equal(runSync('iptables-nft', ['-D', ...direct]).status, 0)
  const first = [
    '-A',
    'KUBE-PORTALS-LISTENER',
    '-m',
    'conntrack',
    '--ctstate',
    'DNAT',
    '-j',
    'ACCEPT',
  ]
  t.equal(runSync('iptables-nft', first).status, 0)
  t.notOk(await portals.isIntact(), 'redirected packets would be refused')
  const guard = rule({ protocol: 'tcp', comment: 'a Service', jump: 'REJECT' })
  const placed = { table: 'filter', chain: 'KUBE-PORTALS-LISTENER', rule: guard } as const
  const own = fixedRules({ portRange: undefined, logsRefused: false })
  const guarding = new IptablesPortals(iptables, { fixed: own })
  await guarding.replaceAll(new Map([['a', [placed]]]))
  t.ok(await guarding.isIntact())
  t.equal(runSync('iptables-nft', ['-D', ...direct]).status, 0)
  t.equal(runSync('iptables-nft', first).status, 0)
  t.notOk(await guarding.isIntact(), 'also by the rule of a Service')
  await guarding.remove()
})

for (const backend of ['nft', 'legacy'] as const) {
  t.test(
    `a change writes everything where others flushed, iptables-${backend}`,
    { skip },
    async (t) => {
      const iptables = await Iptables.open({ family: 'IPv4', backend })
      const options = {
        fixed: fixedRules({ portRange: { from: 30_000, to: 30_100 }, logsRefused: false }),
      }
      const portals = new IptablesPortals(iptables, options)
      const rules = rulesOf('IPv4', 3)
      await portals.replaceAll(rules)
      t.equal(runSync(`iptables-${backend}`, ['-t', 'nat', '-F']).status, 0)
      const [[key = '', own = []] = []] = rules
      // The flush has deleted the rules that this change replaces.
      const { changed } = await portals.change(new Map([[key, own.slice(1)]]))
      t.same(changed.includes(key), true)
      t.ok(await portals.isIntact(), 'the rules of the other Services stand, too')
      await portals.remove()
    },
  )
}
