import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import type { Run } from '../../lib/kernel/command.js'
import { checkedName, safeComment } from '../../lib/kernel/nftables/identifiers.js'
import { disjoint, type Command, type NftSet, type Table } from '../../lib/kernel/nftables/model.js'
import { Nft } from '../../lib/kernel/nftables/nft.js'
import { rememberedIn } from '../../lib/kernel/nftables/remembered-json.js'
import { checkKernelVersion, checkNftVersion } from '../../lib/kernel/nftables/requirements.js'
import { transactionText } from '../../lib/kernel/nftables/text.js'
import { parseCidr } from '../../lib/state/ip.js'

const table: Table = { family: 'ip', name: 'kube-proxy', comment: 'rules' }
const text = (...commands: readonly Command[]) => transactionText({ table, commands })

void t.test('names that nft cannot read as one word are refused', async (t) => {
  for (const name of [
    'a b',
    'x; flush ruleset',
    'x\nflush ruleset',
    'x"y',
    '$x',
    '@x',
    '{',
    '',
    '1st',
    '-x',
    'ü',
    'x'.repeat(256),
  ]) {
    t.throws(() => checkedName(name), KernelError, JSON.stringify(name))
    const chain = { name, rules: [] }
    t.throws(() => text({ do: 'add-chain', chain }), KernelError)
    t.throws(() =>
      text({
        do: 'add-rule',
        chain: 'c',
        rule: { statements: [{ kind: 'verdict', verdict: { to: 'goto', chain: name } }] },
      }),
    )
  }
  t.equal(checkedName('service-ULMVA6XW-ns1/svc1/tcp/p80'), 'service-ULMVA6XW-ns1/svc1/tcp/p80')
})

void t.test('comments keep printable characters and cannot leave their quotes', async (t) => {
  t.equal(safeComment('ns/svc:port'), 'ns/svc:port')
  t.equal(safeComment('a" ; flush ruleset ; "\n\\'), 'a? ; flush ruleset ; ???')
  t.equal(safeComment('x'.repeat(300)).length, 127)
})

void t.test('addresses, ports and interfaces are checked as well', async (t) => {
  const rule = (statement: object) => () =>
    text({ do: 'add-rule', chain: 'c', rule: { statements: [statement as never] } })
  t.throws(rule({ kind: 'dnat', targets: [{ ip: '10.0.0.1; drop', port: 80 }] }))
  t.throws(rule({ kind: 'dnat', targets: [{ ip: '10.0.0.1', port: 65536 }] }))
  t.throws(rule({ kind: 'interface', not: false, name: 'a"b', prefix: false }))
  t.throws(
    rule({ kind: 'address', field: 'saddr', not: false, cidrs: [{ text: '10.0.0.0/8 drop' }] }),
  )
})

void t.test('CIDRs inside other CIDRs are left out, so that a set has no overlap', async (t) => {
  const cidrs = ['10.1.0.0/16', '10.0.0.0/8', '10.0.0.0/8', '192.0.2.0/24', '10.0.0.0/9'].map(
    (one) => parseCidr(one)!,
  )
  t.same(
    disjoint(cidrs, 32).map((one) => one.text),
    ['10.0.0.0/8', '192.0.2.0/24'],
  )
})

void t.test('elements of one set share a command', async (t) => {
  const set = { name: 's', key: ['address', 'inet_service'], holds: 'verdicts' } as const
  const add = (ip: string): Command => ({
    do: 'add-element',
    element: { set, key: [ip, 80], verdict: { to: 'drop' }, comment: 'why' },
  })
  t.equal(
    text(add('10.0.0.1'), add('10.0.0.2'), {
      do: 'delete-element',
      element: { set, key: ['10.0.0.3', 80] },
    }),
    'add element ip kube-proxy s { 10.0.0.1 . 80 comment "why" : drop, 10.0.0.2 . 80 comment "why" : drop }\n' +
      'delete element ip kube-proxy s { 10.0.0.3 . 80 }\n',
  )
})

void t.test('NF23, NF30: nft 1.0.3 and newer works, except releases with faults', async (t) => {
  t.match(checkNftVersion('nftables v1.0.6 (Lester Gooch #5)'), { ok: true, seen: '1.0.6' })
  t.match(checkNftVersion('nftables v1.1.3 (Commodore Bullmoose #4)'), { ok: true })
  t.match(checkNftVersion('nftables v1.0.3 (Lester Gooch #2)'), { ok: true })
  t.match(checkNftVersion('nftables v1.0.2 (Lester Gooch)'), { ok: false, fix: /1\.0\.3/ })
  t.match(checkNftVersion('nftables v0.9.8 (E.D.S.)'), { ok: false })
  t.match(checkNftVersion('nftables v1.0.6.1 (Lester Gooch #5)'), { ok: false, fix: /refused/ })
  t.match(checkNftVersion('nftables v1.1.7 (Commodore Bullmoose #8)'), {
    ok: false,
    fix: /refused/,
  })
  t.match(checkNftVersion('what?'), { ok: false, seen: 'what?' })
})

void t.test('NF23: kernel 5.13 or newer is required, unless the check is off', async (t) => {
  const skip = { KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK: '' }
  t.match(checkKernelVersion('6.1.0-13-amd64', {}), { ok: true })
  t.match(checkKernelVersion('5.13.0', {}), { ok: true })
  t.match(checkKernelVersion('5.4.0-42-generic', {}), { ok: false, fix: /SKIP_KERNEL/ })
  t.match(checkKernelVersion('5.4.0-42-generic', skip), { ok: true })
  t.match(checkKernelVersion('odd', {}), { ok: false })
})

void t.test('error messages of nft are classified, and their text is kept', async (t) => {
  const nft = (stderr: string) => {
    const run: Run = () => Promise.resolve({ code: 1, stdout: '', stderr })
    return new Nft(run)
  }
  const transaction = { table, commands: [{ do: 'add-table' }] } as const
  const cases = [
    ['Error: Could not process rule: Operation not permitted', 'denied'],
    ['Error: Could not process rule: No such file or directory\nadd rule …', 'not-found'],
    ['Error: Could not process rule: File exists', 'exists'],
    ['Error: syntax error, unexpected newline', 'invalid'],
    ['Error: Could not process rule: Device or resource busy', 'busy'],
    ['Error: Could not process rule: Operation not supported', 'unsupported'],
    ['', 'denied'],
    ['killed', 'failed'],
  ] as const
  for (const [stderr, kind] of cases) {
    const error: unknown = await nft(stderr)
      .commit(transaction)
      .catch((thrown: unknown) => thrown)
    t.match(error, { name: 'KernelError', kind, detail: stderr })
  }
  const silent = nft('').commit(transaction)
  await t.rejects(silent, { message: /: nft ended with 1 and said nothing$/ })
  const calm = new Nft(() => Promise.reject(new Error('must not run')))
  t.equal(await calm.commit({ table, commands: [] }), 0, 'nothing to say runs nothing')
})

void t.test('a program that was ended has twice the time at the next call', async (t) => {
  const times: (number | undefined)[] = []
  const run: Run = (_file, _args, options) => {
    times.push(options?.timeoutMs)
    if (times.length !== 2) return Promise.resolve({ code: 0, stdout: '', stderr: '' })
    return Promise.reject(new KernelError('timed-out', 'run nft: no end'))
  }
  const nft = new Nft(run)
  await nft.version()
  await t.rejects(nft.version(), { message: /no end/ })
  await nft.version()
  t.same(times, [120_000, 120_000, 240_000])
})

void t.test('NF15: only clients of session affinity are read from what nft lists', async (t) => {
  const set = (name: string): NftSet => ({ name, key: ['address'], holds: 'keys' })
  const elem = [
    { elem: { val: '192.0.2.1', expires: 7 } },
    { elem: { val: 'eth0', expires: 7 } },
    { elem: { val: 'fd00::1', expires: 7 } },
    { elem: { val: '192.0.2.2' } },
    '192.0.2.3',
    null,
  ]
  const listing = JSON.stringify({
    nftables: [{ metainfo: {} }, { set: { name: 'a', elem } }, { set: { name: 'b' } }, { set: 1 }],
  })
  const sets = [set('a'), set('b'), set('c')]
  t.same(
    [...rememberedIn(listing, 'ip', sets)],
    [
      ['a', [{ address: '192.0.2.1', expiresMs: 7000 }]],
      ['b', []],
    ],
  )
  t.same(rememberedIn(listing, 'ip6', sets).get('a'), [{ address: 'fd00::1', expiresMs: 7000 }])
  t.equal(rememberedIn('{}', 'ip', sets).size, 0)
})

void t.test('NF15: the whole table is listed if nft lists sets without elements', async (t) => {
  const full = {
    nftables: [{ set: { name: 'a', elem: [{ elem: { val: '192.0.2.1', expires: 7 } }] } }],
  }
  const asked: string[] = []
  const run: Run = (_file, args) => {
    asked.push(args.join(' '))
    const isTable = args[2] === 'table'
    const stdout = JSON.stringify(isTable ? full : { nftables: [{ set: { name: 'a' } }] })
    return Promise.resolve({ code: 0, stdout, stderr: '' })
  }
  const affinity: NftSet = { name: 'a', key: ['address'], holds: 'keys', timeoutSeconds: 10 }
  const found = await new Nft(run).remembered({ family: 'ip', name: 'kube-proxy' }, [affinity])
  t.same([...found], [['a', [{ address: '192.0.2.1', expiresMs: 7000 }]]])
  t.same(asked, ['-j list sets table ip kube-proxy', '-j list table ip kube-proxy'])
})

void t.test('NF15: without a table there are no clients; other failures are errors', async (t) => {
  const saying = (stderr: string) => new Nft(() => Promise.resolve({ code: 1, stdout: '', stderr }))
  const ask = (nft: Nft) => nft.remembered({ family: 'ip', name: 'kube-proxy' }, [])
  t.equal((await ask(saying('Error: No such file or directory'))).size, 0)
  await t.rejects(ask(saying('Error: Operation not permitted')), /not permitted/)
})
