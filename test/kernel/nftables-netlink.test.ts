import t from 'tap'
import { runCommand } from '../../lib/kernel/command.js'
import { openNfTables } from '../../lib/kernel/nftables-netlink/nf-tables.js'
import { writeTransaction } from '../../lib/kernel/nftables-netlink/transaction-writer.js'
import {
  disjoint,
  type Command,
  type NftFamily,
  type NftSet,
  type Statement,
} from '../../lib/kernel/nftables/model.js'
import { Nft, type RulesetWriter } from '../../lib/kernel/nftables/nft.js'
import { parseCidr } from '../../lib/state/ip.js'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { createNetns, netnsSkip, programSkip } from '../support/netns.js'

const skip = netnsSkip || programSkip('nft')
const tableOf = (family: NftFamily) => ({ family, name: 'kube-proxy', comment: 'rules "of" ours' })

/** Every object and every statement, with extreme values. */
function everything(family: NftFamily): readonly Command[] {
  const ip6 = family === 'ip6'
  const ip = (v4: string, v6: string) => (ip6 ? v6 : v4)
  const cidrs = (...texts: readonly string[]) =>
    disjoint(
      texts.map((text) => parseCidr(text)!),
      ip6 ? 128 : 32,
    )
  const address = (not: boolean, ...texts: readonly string[]): Statement => ({
    kind: 'address',
    field: not ? 'saddr' : 'daddr',
    not,
    cidrs: cidrs(...texts),
  })
  const key = ['address', 'inet_proto', 'inet_service'] as const
  const single = { name: 'single', key: ['address'], holds: 'keys', comment: 'c' } as const
  const ports = { name: 'ports', key: ['inet_proto', 'inet_service'], holds: 'verdicts' } as const
  const map = { name: 'svc-map', key, holds: 'verdicts', comment: 'x'.repeat(200) } as const
  const pairs = { name: 'pairs', key: ['address', ...key], holds: 'keys' } as const
  const numbered = (['tcp', 'udp', 'sctp'] as const).map((protocol): NftSet => ({
    name: `numbered-${protocol}`,
    key: ['address', 'inet_service', 'number'],
    holds: 'targets',
    protocol,
    comment: 'by chance',
  }))
  const places: NftSet = { name: 'places', key: ['number'], holds: 'targets', protocol: 'udp' }
  const sticky = {
    name: 'sticky',
    key: ['address'],
    holds: 'keys',
    timeoutSeconds: 10800,
  } as const
  const chain = (name: string) => ({ name, rules: [] })
  const tcp: Statement = { kind: 'protocol', protocol: 'tcp' }
  const targets = Array.from({ length: 1500 }, (_, index) => ({
    ip: ip(`10.0.${index >> 8}.${index & 255}`, `fd00::${(index + 1).toString(16)}`),
    port: 1000 + index,
  }))
  const destination = ['daddr', 'l4proto', 'dport'] as const
  const rules: readonly (readonly Statement[])[] = [
    [address(true, ip('10.0.0.0/8', 'fd00::/8'))],
    [address(false, ip('192.168.4.0/22', 'fd00::/61'))],
    [address(false, ip('10.1.2.3/32', 'fd00::1/128'))],
    [address(false, ip('0.0.0.0/0', '::/0'))],
    [
      address(
        true,
        ip('10.0.0.0/8', 'fd00::/16'),
        ip('11.0.0.0/8', 'fd01::/16'),
        ip('192.168.4.0/22', 'fd08::/61'),
      ),
    ],
    [address(false, ip('0.0.0.0/8', '::/8'), ip('128.0.0.0/1', '8000::/1'))],
    [address(false, ip('10.0.0.1/32', 'fd00::1/128'), ip('10.0.0.9/32', 'fd00::9/128'))],
    [{ kind: 'member', fields: ['daddr'], set: 'single' }],
    [{ kind: 'member', fields: ['saddr', 'daddr', 'l4proto', 'dport'], set: 'pairs' }],
    [
      { kind: 'local', field: 'daddr' },
      { kind: 'local', field: 'saddr' },
    ],
    [
      { kind: 'interface', not: true, name: 'cali', prefix: true },
      { kind: 'interface', not: false, name: 'cni0', prefix: false },
    ],
    [
      { kind: 'connection', is: 'new' },
      { kind: 'connection', is: 'dnat' },
    ],
    [
      { kind: 'mark-test', bits: 0x4000 },
      { kind: 'mark-change', by: 'xor', bits: 0x4000 },
      { kind: 'masquerade' },
    ],
    [{ kind: 'mark-change', by: 'or', bits: 0x80000000 }],
    [{ kind: 'verdict-map', fields: destination, map: 'svc-map' }],
    [{ kind: 'verdict-map', fields: ['l4proto', 'dport'], map: 'ports' }],
    ...(['tcp', 'udp', 'sctp'] as const).map((protocol): readonly Statement[] => [
      { kind: 'dnat-by-map', protocol, choices: 300, map: `numbered-${protocol}` },
    ]),
    [
      {
        kind: 'random-verdict',
        verdicts: [
          { to: 'goto', chain: 'a/b.c_d' },
          { to: 'jump', chain: 'chain-last' },
          { to: 'drop' },
        ],
      },
    ],
    [tcp, { kind: 'dnat', targets: targets.slice(0, 1) }],
    [tcp, { kind: 'dnat', targets: targets.slice(0, 3), by: 'turn' }],
    [tcp, { kind: 'dnat', targets: targets.slice(0, 2), by: 'source' }],
    [{ kind: 'random-verdict', by: 'source', verdicts: [{ to: 'drop' }, { to: 'return' }] }],
    [{ kind: 'random-verdict', by: 'turn', verdicts: [{ to: 'drop' }, { to: 'return' }] }],
    [{ kind: 'dnat-by-source', protocol: 'udp', places: 300, map: 'places' }],
    [
      { kind: 'protocol', protocol: 'sctp' },
      { kind: 'dnat', targets: targets.slice(0, 3) },
    ],
    [tcp, { kind: 'dnat', targets }],
    [
      { kind: 'remember', set: 'sticky', field: 'saddr' },
      { kind: 'verdict', verdict: { to: 'return' } },
    ],
    [{ kind: 'verdict', verdict: { to: 'goto', chain: 'a/b.c_d' } }],
  ]
  return [
    { do: 'add-table' },
    { do: 'delete-table' },
    { do: 'add-table' },
    ...[single, ports, map, pairs, ...numbered, places, sticky].map((set): Command => ({
      do: 'add-set',
      set,
    })),
    {
      do: 'add-chain',
      chain: { ...chain('chain-post'), base: { type: 'nat', hook: 'postrouting', priority: 100 } },
    },
    {
      do: 'add-chain',
      chain: {
        ...chain('chain-in'),
        base: { type: 'filter', hook: 'input', priority: -110 },
        comment: 'why',
      },
    },
    { do: 'add-chain', chain: chain('chain-last') },
    { do: 'add-chain', chain: { ...chain('a/b.c_d'), comment: 'a "quoted" one' } },
    { do: 'add-chain', chain: chain('rules') },
    {
      do: 'add-rule',
      chain: 'chain-in',
      rule: { statements: [{ kind: 'reject' }], comment: 'no' },
    },
    ...rules.map((statements): Command => ({
      do: 'add-rule',
      chain: 'rules',
      rule: { statements },
    })),
    { do: 'add-element', element: { set: single, key: [ip('10.9.8.7', 'fd00::9:8:7')] } },
    { do: 'add-element', element: { set: ports, key: ['udp', 30000], verdict: { to: 'drop' } } },
    {
      do: 'add-element',
      element: {
        set: map,
        key: [ip('10.9.8.7', '::1'), 'tcp', 80],
        verdict: { to: 'goto', chain: 'a/b.c_d' },
        comment: 'ns/svc:port',
      },
    },
    {
      do: 'add-element',
      element: {
        set: map,
        key: [ip('10.9.8.8', '::2'), 'sctp', 65535],
        verdict: { to: 'goto', chain: 'chain-last' },
      },
    },
    {
      do: 'add-element',
      element: {
        set: places,
        key: [16380],
        target: { ip: ip('10.0.0.1', 'fd00::1'), port: 5353 },
      },
    },
    ...numbered.map((set): Command => ({
      do: 'add-element',
      element: {
        set,
        key: [ip('10.9.8.7', '::1'), 53, 299],
        target: { ip: ip('10.0.0.1', 'fd00::1'), port: 5353 },
      },
    })),
    {
      do: 'add-element',
      element: {
        set: pairs,
        key: [ip('1.2.3.4', '::3'), ip('255.255.255.255', 'ffff::ffff'), 'tcp', 1],
      },
    },
  ]
}

for (const family of ['ip', 'ip6'] as const) {
  void t.test(
    `both writers make the same ruleset from every statement, ${family}`,
    { skip },
    async (t) => {
      const netns = createNetns('nftables-w')
      const nfTables = insideNamespace(netns.name, () => openNfTables())
      t.teardown(() => {
        nfTables.close()
        netns.remove()
      })
      const nft = new Nft((file, args, options) =>
        insideNamespace(netns.name, () => runCommand(file, args, options)),
      )
      const transaction = { table: tableOf(family), commands: everything(family) }
      const listing = async (writer: RulesetWriter) => {
        await writer.commit(transaction)
        // The order of elements in a hashed set is the kernel's, so the sets here have few.
        return netns
          .exec('nft', 'list', 'ruleset')
          .split('\n')
          .map((line) => line.trimEnd())
      }
      const text = await listing(nft)
      const netlink = await listing(nfTables)
      t.same(netlink.toSorted(), text.toSorted())
      t.ok(text.length > 60, 'and there is something to compare')

      const set = { name: 'single', key: ['address'], holds: 'keys' } as const
      const element = { set, key: [family === 'ip' ? '10.0.0.99' : 'fd00::99'] }
      const before = netns.exec('nft', 'list', 'ruleset')
      const failing = nfTables.commit({
        table: tableOf(family),
        commands: [
          { do: 'flush-chain', chain: { name: 'rules', rules: [] } },
          { do: 'delete-element', element },
          { do: 'add-element', element },
        ],
      })
      const error: unknown = await failing.catch((thrown: unknown) => thrown)
      t.match(error, { kind: 'not-found', message: /delete element ip6? kube-proxy single/ })
      t.equal(netns.exec('nft', 'list', 'ruleset'), before, 'all or nothing')

      const generation = nfTables.generation()
      await nfTables.commit({
        table: tableOf(family),
        commands: [
          { do: 'flush-chain', chain: { name: 'rules', rules: [] } },
          { do: 'delete-chain', chain: { name: 'rules', rules: [] } },
          { do: 'delete-set', set },
        ],
      })
      t.equal(nfTables.generation(), generation + 1, 'one transaction, one generation')
      t.notMatch(netns.exec('nft', 'list', 'ruleset'), /chain rules|set single/)
      await nfTables.commit({ table: tableOf(family), commands: [{ do: 'delete-table' }] })
      t.equal(netns.exec('nft', 'list', 'ruleset'), '')
    },
  )
}

void t.test('the netlink writer refuses names as the text writer does', async (t) => {
  const commands = (name: string): readonly Command[] => [
    {
      do: 'add-rule',
      chain: 'c',
      rule: { statements: [{ kind: 'verdict', verdict: { to: 'goto', chain: name } }] },
    },
    { do: 'add-chain', chain: { name, rules: [] } },
    { do: 'delete-set', set: { name, key: ['address'], holds: 'keys' } },
  ]
  for (const command of commands('a b')) {
    t.throws(
      () => writeTransaction({ table: tableOf('ip'), commands: [command] }, () => '__map1'),
      /not one that nft/,
    )
  }
  for (const command of commands('a/b'))
    writeTransaction({ table: tableOf('ip'), commands: [command] }, () => '__map1')
  const bad = { kind: 'dnat', targets: [{ ip: 'what', port: 1 }] } as const
  const rule = { do: 'add-rule', chain: 'c', rule: { statements: [bad] } } as const
  t.throws(
    () => writeTransaction({ table: tableOf('ip'), commands: [rule] }, () => '__map1'),
    /no address/,
  )
})
