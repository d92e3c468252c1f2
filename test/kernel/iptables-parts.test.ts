import { deepStrictEqual, equal } from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import {
  accounted,
  addressType,
  Batch,
  bytecode,
  canonicalRule,
  commentOf,
  conditionsOf,
  connectionState,
  destinationPort,
  Iptables,
  isSameRule,
  markIs,
  markIsNot,
  not,
  notConnectionState,
  parseRule,
  randomly,
  remember,
  rule,
  seenRecently,
  targetOf,
} from '../../lib/kernel/iptables.js'
import { runProgram } from '../../lib/kernel/iptables/command.js'
import { visitChains } from '../../lib/kernel/iptables/left-out.js'
import { parseCounters, parseSaved, SavedTables } from '../../lib/kernel/iptables/saved.js'
import { anyText, examplesOf, nearText, textsOf } from '../support/corpus.js'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { createNetns, netnsSkip, programSkip } from '../support/netns.js'
import type { Backend, Match, Run, RuleSpec } from '../../lib/kernel/iptables.js'

/** A rule is the same as data, as text, and as iptables-save prints it. */

const perhapsNot = <T>(values: fc.Arbitrary<T>) =>
  fc.oneof(
    values,
    values.map((value) => not(value)),
  )

const port = fc.integer({ min: 0, max: 65535 })
const mark = fc.integer({ min: 1, max: 2 ** 31 })
const printable = fc
  .string({ unit: 'grapheme-ascii', maxLength: 80 })
  .filter((text) => text !== '!')

const match: fc.Arbitrary<Match> = fc.oneof(
  port.map((number) => destinationPort('tcp', number)),
  fc.constant(connectionState('RELATED', 'ESTABLISHED')),
  fc.constant(notConnectionState('DNAT')),
  mark.map((bits) => markIs(bits)),
  mark.map((bits) => markIsNot(bits)),
  fc.double({ min: 0.001, max: 1, noNaN: true }).map(randomly),
  fc.constantFrom('src', 'dst').map((side) => addressType(side, 'LOCAL')),
  fc.constant(seenRecently('KUBE-SEP-A', 600)),
  fc.constant(remember('KUBE-SEP-A')),
  fc.constant(accounted('dropped')),
  fc.constant(bytecode([[6, 0, 0, 65535]])),
  fc.constant({ name: 'set', args: ['--match-set', 'KUBE-CLUSTER-IP', 'dst,dst'] }),
  fc.constant({ name: 'tcp', args: ['--tcp-flags', 'FIN,SYN', 'SYN'] }),
  // The free text of a target or match may look like an option.
  printable.map((text) => ({ name: 'comment', args: ['--comment', text] })),
)

const goesTo = fc.oneof(
  fc.constant({}),
  fc.constantFrom('ACCEPT', 'KUBE-SVC-A').map((jump) => ({ jump })),
  fc.constant({ goto: 'KUBE-SVC-A' }),
  fc.constant({ jump: 'DNAT', jumpArgs: ['--to-destination', '[fd00::1]:80'] }),
  printable.map((text) => ({ jump: 'LOG', jumpArgs: ['--log-prefix', text] })),
)

const rules: fc.Arbitrary<RuleSpec> = fc
  .tuple(
    fc.record(
      {
        source: perhapsNot(fc.constantFrom('10.0.0.1/32', '10.0.0.0/8', 'fd00::/64')),
        destination: perhapsNot(fc.constantFrom('10.96.0.10/32', 'fd00::10/128')),
        inInterface: perhapsNot(fc.constantFrom('eth0', 'veth+')),
        outInterface: perhapsNot(fc.constant('eth1')),
        protocol: perhapsNot(fc.constantFrom('tcp', 'udp', 'sctp')),
        comment: printable,
        matches: fc.array(match, { minLength: 1, maxLength: 4 }),
      },
      { requiredKeys: [] },
    ),
    goesTo,
  )
  .map(([asks, goes]) => ({ ...asks, ...goes }))
  // A comment as the first match would be the comment of the rule.
  .filter(({ comment, matches }) => comment !== undefined || matches?.[0]?.name !== 'comment')

t.test('the text of a rule is parsed into the parts it was written from', async () => {
  fc.assert(
    fc.property(rules, (spec) => {
      const { text } = rule(spec)
      deepStrictEqual(parseRule(text), spec)
      equal(rule(parseRule(text)).text, text)
    }),
    { numRuns: 500 },
  )
})

t.test('rules of other programs are parsed without loss', async (t) => {
  const foreign =
    '! -p tcp -f -m multiport ! --dports 80,443 -m comment --comment "-j DROP" -m hashlimit --hashlimit-upto 5/sec -g OTHER'
  const spec = parseRule(foreign)
  t.same(spec.protocol, not('tcp'))
  t.equal(commentOf(spec), '-j DROP')
  t.equal(targetOf(foreign), 'OTHER')
  t.same(
    conditionsOf(spec).map(({ name, values, isNot }) => [isNot, name, ...values]),
    [
      [true, '-p', 'tcp'],
      [false, '-f'],
      [true, '--dports', '80,443'],
      [false, '--hashlimit-upto', '5/sec'],
    ],
  )
  t.equal(targetOf('-s 10.0.0.1/32'), undefined)
})

t.test('only texts of the same rule have the same canonical form', async (t) => {
  const same: readonly (readonly [string, string])[] = [
    ['-s 10.0.0.1 -j X', '-s 10.0.0.1/32 -j X'],
    ['-d 10.0.0.7/8 -j X', '-d 10.0.0.0/8 -j X'],
    ['-s 0.0.0.0/0 -j X', '-j X'],
    ['-d ::0/::3f -j X', '-d ::/::3f -j X'],
    ['-j MARK --or-mark 0x4000', '-j MARK --set-xmark 0x4000/0x4000'],
    ['-j REJECT', '-j REJECT --reject-with icmp-port-unreachable'],
    ['-m comment --comment "a  b" -j X', '-m comment  --comment  "a  b"  -j X'],
    ['-m statistic --probability 0.3333333333', '-m statistic --probability 0.33333333349'],
  ]
  for (const [a, b] of same) t.ok(isSameRule(a, b), `${a} = ${b}`)
  const different: readonly (readonly [string, string])[] = [
    ['! -s 0.0.0.0/0 -j X', '-j X'],
    ['-s 10.0.0.1 -j X', '! -s 10.0.0.1 -j X'],
    ['-j REJECT', '-j REJECT --reject-with tcp-reset'],
    ['-m comment --comment "a b" -j X', '-m comment --comment "a  b" -j X'],
  ]
  for (const [a, b] of different) t.notOk(isSameRule(a, b), `${a} ≠ ${b}`)
})

t.test('any text is read as what iptables-save prints, and each of its rules has parts', (t) => {
  const texts = fc.oneof(anyText(), nearText('iptables-save'))
  fc.assert(
    fc.property(texts, (text) => {
      const printed = parseSaved(text).flatMap(({ chains }) =>
        [...chains.values()].flatMap(({ rules }) => rules),
      )
      for (const one of [...printed, text]) {
        canonicalRule(one)
        conditionsOf(parseRule(one))
        targetOf(one)
      }
      for (const { packets } of parseCounters(text)) equal(packets >= 0, true)
    }),
    { numRuns: 1000, examples: examplesOf(textsOf('iptables-save')) },
  )
  t.end()
})

const known: readonly RuleSpec[] = [
  { source: not('10.1.0.0/16'), destination: '10.96.0.10', protocol: 'tcp', jump: 'Y' },
  { inInterface: not('eth0'), matches: [addressType('src', 'LOCAL')], goto: 'Y' },
  { comment: 'default/web:http "cluster" IP', matches: [connectionState('NEW')], jump: 'Y' },
  { matches: [connectionState('RELATED', 'ESTABLISHED')], comment: '--jump', jump: 'RETURN' },
  { matches: [markIsNot(0x4000)], jump: 'RETURN' },
  { matches: [notConnectionState('DNAT')], jump: 'MARK', jumpArgs: ['--or-mark', '0x4000'] },
  { jump: 'MARK', jumpArgs: ['--xor-mark', '0x4000'] },
  { matches: [randomly(1 / 3), seenRecently('LIST', 60)], jump: 'Y' },
  { matches: [bytecode([[6, 0, 0, 65535]])], jump: 'RETURN' },
  { protocol: 'udp', matches: [destinationPort('udp', [1, 9]), remember('LIST')], jump: 'Y' },
  {
    ...{ protocol: 'tcp', matches: [destinationPort('tcp', 80)], comment: 'default/web:http ->' },
    ...{ jump: 'DNAT', jumpArgs: ['--to-destination', '10.0.0.7:8080'] },
  },
  { protocol: 'tcp', jump: 'REDIRECT', jumpArgs: ['--to-ports', '40000'] },
]

for (const backend of ['nft', 'legacy'] as const satisfies readonly Backend[]) {
  const skip = netnsSkip || programSkip(`iptables-${backend}`)
  t.test(`the output of iptables-save is read as ours, ${backend} backend`, { skip }, async (t) => {
    const netns = createNetns(`iptables-parts-${backend}`)
    t.teardown(() => netns.remove())
    const run: Run = (file, args, options) =>
      insideNamespace(netns.name, () => runProgram(file, args, options))
    const iptables = await Iptables.open({ family: 'IPv4', backend, run })
    const write = async (specs: readonly RuleSpec[]) => {
      const batch = new Batch().chain('nat', 'X').chain('nat', 'Y')
      for (const spec of specs) batch.append('nat', 'X', rule(spec))
      await iptables.restore(batch)
      const [nat] = await iptables.save('nat')
      return nat?.chains.get('X')?.rules ?? []
    }
    const saved = await write(known)
    t.equal(saved.length, known.length)
    for (const [index, spec] of known.entries()) {
      const text = saved[index] ?? ''
      t.equal(canonicalRule(text), canonicalRule(rule(spec).text), text)
      const parts = parseRule(text)
      t.equal(parts.jump, spec.jump)
      t.equal(parts.goto, spec.goto)
      t.equal(commentOf(parts), spec.comment ?? '')
    }
    t.same(await write(saved.map(parseRule)), saved, 'its parts make the same rules again')
  })
}

t.test(
  'of a hidden table with more than 1,000 chains only those are read that are needed',
  async (t) => {
    const names = ['PREROUTING', ...Array.from({ length: 1000 }, (_, index) => `KUBE-SEP-${index}`)]
    const listed: string[] = []
    const all = new Set([...names.map((name) => `nat ${name}`), 'filter INPUT', 'nat not/ours'])
    const hidden = {
      table: 'nat',
      all,
      sought: undefined,
      has: () => Promise.resolve(false),
    } as const
    const list = (chain: string) => {
      listed.push(chain)
      return Promise.resolve(['-j X'])
    }
    const visit = (wants?: (chain: string) => boolean, sought?: []) => {
      const saved = new SavedTables(wants)
      return visitChains(saved, { ...hidden, wants, list, sought }).then(() => saved.all[0])
    }
    await t.rejects(visit(), { message: /leaves out table nat/ }, 'each takes a program')
    t.equal(await visit(undefined, []), undefined, 'who has no jumps there needs nothing')
    t.strictSame(listed, [])
    const saved = await visit((chain) => !chain.startsWith('KUBE-SEP-'))
    t.strictSame(listed, ['PREROUTING'])
    t.strictSame([...(saved?.chains.keys() ?? [])], names, 'the others are known by name')
    t.strictSame(saved?.chains.get('PREROUTING'), {
      name: 'PREROUTING',
      policy: 'ACCEPT',
      rules: ['-j X'],
    })
  },
)
