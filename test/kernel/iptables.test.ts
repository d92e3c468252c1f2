import { createServer } from 'node:net'
import { join } from 'node:path'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { spawn } from 'node:child_process'
import { tmpdir } from 'node:os'
import t from 'tap'
import {
  addressType,
  backendInUse,
  Batch,
  bytecode,
  connectionState,
  destinationPort,
  Iptables,
  IptablesError,
  markIsNot,
  not,
  parseSaved,
  printableComment,
  randomly,
  remember,
  rule,
  seenRecently,
  splitArguments,
} from '../../lib/kernel/iptables.js'
import { runProgram } from '../../lib/kernel/iptables/command.js'
import { classifyFailure } from '../../lib/kernel/iptables/error.js'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { createNetns, netnsSkip, programSkip, type NetworkNamespace } from '../support/netns.js'
import type { Backend, Locked, Rule, Run } from '../../lib/kernel/iptables.js'

const hostile = [
  'x" -j ACCEPT',
  'x\\" -j ACCEPT',
  'a\n-A INPUT -j ACCEPT\nCOMMIT',
  "$(reboot) `reboot` ; 'reboot' | & > < * ?",
  '--jump',
  '!',
  '',
  '#',
  '\\',
  'trailing\\',
  'ünïcødé → \u202e\u0000\u001b[2J',
  'é'.repeat(400),
  '\ud800 half a pair',
]

t.test('a rule is one line in the order and the words of iptables-save', async (t) => {
  const text = rule({
    protocol: 'tcp',
    destination: '10.0.0.1/32',
    source: not('10.1.0.0/16'),
    comment: 'default/web:http cluster IP',
    matches: [destinationPort('tcp', 80), randomly(1 / 3)],
    jump: 'DNAT',
    jumpArgs: ['--to-destination', '[fd00::1]:80'],
  }).text
  t.equal(
    text,
    '! -s 10.1.0.0/16 -d 10.0.0.1/32 -p tcp -m comment --comment "default/web:http cluster IP" ' +
      '-m tcp --dport 80 -m statistic --mode random --probability 0.33333333349 ' +
      '-j DNAT --to-destination [fd00::1]:80',
  )
  const commented = rule({ source: '10.0.0.0/8', comment: 'default/web:http', jump: 'RETURN' })
  t.equal(commented.text, '-s 10.0.0.0/8 -m comment --comment "default/web:http" -j RETURN')
})

t.test('any comment stays one argument of one line', async (t) => {
  for (const text of hostile) {
    const made = rule({ comment: text, jump: 'RETURN' })
    t.notMatch(made.text, /[\n\r\0]/)
    const args = splitArguments(made.text)
    t.same(args.slice(0, 3), ['-m', 'comment', '--comment'])
    t.same(args.slice(4), ['-j', 'RETURN'], JSON.stringify(text))
    t.ok(Buffer.byteLength(args[3]!) < 256, 'fits the kernel')
    t.equal(args[3], printableComment(text))
  }
})

t.test('wrong names, addresses and ports are refused when a rule is made', async (t) => {
  for (const bad of ['', '-j', 'A B', 'x'.repeat(29), 'a\nb', '!', '../x']) {
    t.throws(() => rule({ jump: bad }), RangeError, `chain ${bad}`)
    t.throws(() => new Batch().chain('nat', bad), RangeError)
  }
  for (const bad of ['10.0.0.1 -j ACCEPT', '!', 'host.example', '10.0.0.0/8,1.1.1.1', '']) {
    t.throws(() => rule({ source: bad }), RangeError, `address ${bad}`)
    t.throws(() => rule({ destination: not(bad) }), RangeError)
  }
  t.throws(() => rule({ inInterface: 'eth0 -j ACCEPT' }), RangeError)
  t.throws(() => rule({ protocol: 'tcp -j' }), RangeError)
  t.throws(() => rule({ matches: [{ name: 'a b', args: [] }] }), RangeError)
  t.throws(() => rule({ jump: 'LOG', jumpArgs: ['--log-prefix', 'a\nb'] }), RangeError)
  t.throws(() => destinationPort('tcp', 65536), RangeError)
  t.throws(() => randomly(0), RangeError)
  t.throws(() => remember('a/b'), RangeError)
  t.throws(() => new Batch().deleteSaved('nat', 'X', 'a\nCOMMIT'), RangeError)
})

t.test(
  'a batch declares chains first in each table, and is empty without operations',
  async (t) => {
    const batch = new Batch()
      .append('nat', 'A', rule({ jump: 'B' }))
      .chain('nat', 'A')
      .chain('nat', 'B')
      .deleteChain('filter', 'C')
      .policy('filter', 'INPUT', 'DROP')
    t.equal(
      batch.toString(),
      '*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\nCOMMIT\n' +
        '*filter\n:INPUT DROP [0:0]\n-X C\nCOMMIT\n',
    )
    t.equal(batch.size, 5)
    t.equal(new Batch().toString(), '')
  },
)

t.test('the output of iptables-save is parsed', async (t) => {
  const [nat, filter] = parseSaved(
    '# Generated\n*nat\n:PREROUTING ACCEPT [1:2]\n:X - [0:0]\n-A X -m comment --comment "a b" -j Y\n' +
      '-A X\nCOMMIT\n*filter\n:INPUT DROP [0:0]\nCOMMIT\n*odd\n:Z - [0:0]\nCOMMIT\n',
  )
  t.same(nat?.chains.get('X')?.rules, ['-m comment --comment "a b" -j Y', ''])
  t.equal(nat?.chains.get('PREROUTING')?.policy, 'ACCEPT')
  t.equal(filter?.chains.get('INPUT')?.policy, 'DROP')
})

t.test(
  'error messages of both backends and several versions are classified, with the line number',
  async (t) => {
    const of = (stderr: string, input?: string) =>
      classifyFailure({ action: 'restore', code: 1, stderr, ...(input ? { input } : {}) })
    const match = of(
      "iptables-restore v1.8.9 (legacy): Couldn't load match `nosuch':No such file or directory\n\n" +
        "Error occurred at line: 3\nTry `iptables-restore -h' for more information.\n",
      '*nat\n:X - [0:0]\n-A X -m nosuch\nCOMMIT\n',
    )
    t.match(match, { kind: 'unsupported', line: 3, lineText: '-A X -m nosuch' })
    t.match(match.message, /couldn't load match/)
    t.match(
      of(
        'iptables-nft-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (Invalid argument): rule in chain X',
      ),
      { line: 3 },
    )
    const names = 'failed to list table names in /proc/net/ip_tables_names: Permission denied'
    t.match(
      of(`iptables-legacy-save: ${names}`).message,
      /; root alone may read this file; as root/,
    )
    const who = "can't initialize iptables table `nat': iptables who? (do you need to insmod?)"
    t.match(of(`iptables v1.8.9 (legacy): ${who}`), { kind: 'unsupported' })
    t.match(of('iptables-restore: line 4 failed'), { kind: 'failed', line: 4 })
    t.match(of('Another app is currently holding the xtables lock. Stopped waiting after 1s.'), {
      kind: 'locked',
      line: undefined,
    })
    t.match(of('Could not fetch rule set generation id: Permission denied (you must be root)'), {
      kind: 'denied',
      message: /CAP_NET_ADMIN/,
    })
    t.match(of('iptables: Bad rule (does a matching rule exist in that chain?).'), {
      kind: 'not-found',
    })
    t.match(of(''), { kind: 'failed', message: 'restore: exit code 1' })
  },
)

/** A node with both backends. `saves` has the rules of each. */
function nodeWith(saves: Partial<Record<string, string>>, version = 'v1.8.9 (nf_tables)'): Run {
  return (file, args) => {
    if (args.includes('--version')) {
      return Promise.resolve({ code: 0, stdout: `iptables ${version}\n`, stderr: '' })
    }
    return Promise.resolve({ code: 0, stdout: saves[file] ?? '', stderr: '' })
  }
}

t.test('IT48: the backend with the rules is chosen, after the hint of kubelet', async (t) => {
  t.equal(await backendInUse(nodeWith({ 'iptables-legacy-save': '-A a\n-A b\n' })), 'legacy')
  t.equal(await backendInUse(nodeWith({ 'ip6tables-nft-save': '-A a\n' })), 'nft')
  t.equal(await backendInUse(nodeWith({})), undefined)
  const hinted = nodeWith({
    'iptables-legacy-save': '*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n',
    'iptables-nft-save': '-A a\n-A b\n',
  })
  t.equal(await backendInUse(hinted), 'legacy')
  const opened = await Iptables.open({ family: 'IPv4', run: hinted })
  t.equal(opened.capabilities.backend, 'nft', 'the backend is what the program says it is')
})

t.test(
  'IT48: a proxy finds its rules again where others have more in the other backend',
  async (t) => {
    const ours = (chain: string) => `*nat\n:${chain} - [0:0]\n-A a\n`
    const others = '-A a\n-A b\n-A c\n'
    const inNft = { 'iptables-nft-save': ours('KUBE-SERVICES'), 'iptables-legacy-save': others }
    t.equal(await backendInUse(nodeWith(inNft)), 'nft')
    const inLegacy = {
      'iptables-nft-save': others,
      'iptables-legacy-save': ours('KUBE-PORTALS-CONTAINER'),
    }
    t.equal(await backendInUse(nodeWith(inLegacy)), 'legacy')
    const inBoth = { 'iptables-nft-save': ours('KUBE-SERVICES') + others }
    t.equal(await backendInUse(nodeWith({ ...inLegacy, ...inBoth })), 'nft', 'where most are')
  },
)

t.test('IT48: a backend that takes long to tell its rules is waited for', async (t) => {
  const rules = nodeWith({ 'iptables-legacy-save': '-A a\n' })
  const run: Run = (file, args, options) => {
    const isLate = file === 'iptables-legacy-save' && (options?.timeoutMs ?? Infinity) < 60_000
    return isLate ? Promise.reject(new Error('no end')) : rules(file, args, options)
  }
  t.equal(await backendInUse(run), 'legacy')
})

t.test('IT48: where the tables cannot be listed, the hint of kubelet is looked for', async (t) => {
  const run: Run = (file, args) => {
    const isHint = file === 'iptables-legacy-save' && args.join(' ') === '-t mangle'
    const stdout = isHint ? '*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n' : ''
    const code = file === 'iptables-legacy-save' && args.length === 0 ? 1 : 0
    return Promise.resolve({ code, stdout, stderr: '' })
  }
  t.equal(await backendInUse(run), 'legacy')
})

const legacySkip = netnsSkip || programSkip('iptables-legacy')
t.test('IT48: to look for the backend makes no table', { skip: legacySkip }, async (t) => {
  const netns = createNetns('iptables-lib-look')
  t.teardown(() => netns.remove())
  const run: Run = (file, args, options) =>
    insideNamespace(netns.name, () => runProgram(file, args, options))
  const tables = () => netns.exec('sh', '-c', 'cat /proc/net/ip*_tables_names').trim()
  t.equal(await backendInUse(run), undefined)
  t.equal(tables(), '')
  netns.exec('iptables-legacy', '-t', 'nat', '-N', 'OLD')
  netns.exec('iptables-legacy', '-t', 'nat', '-A', 'OLD')
  t.equal(await backendInUse(run), 'legacy')
  t.equal(tables(), 'nat', 'and no other')
})

t.test('a program stays with its backend, and does not read every rule again', async (t) => {
  const asked: string[] = []
  const saves: Partial<Record<string, string>> = { 'iptables-legacy-save': '-A a\n' }
  const run: Run = (file, args, options) => {
    asked.push(file)
    const of = file.includes('legacy') ? 'v1.8.9 (legacy)' : undefined
    return nodeWith(saves, of)(file, args, options)
  }
  t.equal((await Iptables.open({ family: 'IPv4', run })).capabilities.backend, 'legacy')
  t.ok(asked.some((file) => file.endsWith('-save')))
  asked.length = 0
  // The rules that showed the backend are gone, for example by a cleanup.
  delete saves['iptables-legacy-save']
  t.equal((await Iptables.open({ family: 'IPv6', run })).capabilities.backend, 'legacy')
  t.same(asked, ['ip6tables-legacy'], 'it asks for the version alone')
  asked.length = 0
  await Iptables.open({ family: 'IPv6', backend: 'legacy', run })
  t.same(asked, [], 'and only once for that')
})

t.test('a default that becomes another backend later changes nothing for a program', async (t) => {
  const asked: string[] = []
  const withNames =
    (names: boolean): Run =>
    (file, args, options) => {
      if (!names && /-(nft|legacy)/.test(file))
        return Promise.reject(new IptablesError('missing', `run ${file}: ENOENT`))
      asked.push(file)
      return nodeWith({})(file, args, options)
    }
  const open = (names: boolean) => Iptables.open({ family: 'IPv4', run: withNames(names) })
  const named = await open(true)
  asked.length = 0
  await named.restore(new Batch().chain('nat', 'X'))
  t.same(asked, ['iptables-nft-restore'])
  const unnamed = await open(false)
  asked.length = 0
  await unnamed.restore(new Batch().chain('nat', 'X'))
  t.same(asked, ['iptables-restore'], 'where only the default has a name, it is used')
})

t.test('what a kernel takes is not asked again, what it refuses is', async (t) => {
  const asked: string[] = []
  const refused = { code: 2, stdout: '', stderr: "iptables-restore: Couldn't load match `bpf'\n" }
  const run: Run = (file, args, options) => {
    if (!args.includes('--test')) return nodeWith({})(file, args)
    asked.push(options?.stdin ?? '')
    const isRefused = options?.stdin?.includes('-m bpf') === true
    return Promise.resolve(isRefused ? refused : { code: 0, stdout: '', stderr: '' })
  }
  const [known, refusedRule] = [
    rule({ protocol: 'tcp' }),
    rule({ matches: [bytecode([[6, 0, 0, 0]])] }),
  ]
  const open = () => Iptables.open({ family: 'IPv4', run })
  t.equal(await (await open()).supports('nat', known), true)
  t.equal(await (await open()).supports('nat', known), true)
  t.equal(asked.length, 1, 'also by another object for the same programs')
  await (
    await open()
  ).require([
    ['nat', known],
    ['filter', known],
  ])
  t.notMatch(asked[1], '*nat', 'what is known is left out')
  asked.length = 0
  for (let tried = 0; tried < 2; tried++) {
    t.equal(await (await open()).supports('nat', refusedRule), false)
    await t.rejects((await open()).require([['nat', refusedRule]]), {
      kind: 'unsupported',
      message: /bpf/,
    })
  }
  t.equal(asked.length, 4, 'a module may have been loaded since')
  const other: Run = (...call) => run(...call)
  t.equal(await (await Iptables.open({ family: 'IPv4', run: other })).supports('nat', known), true)
  t.equal(asked.length, 5, 'another node is asked itself')
})

t.test('a look at rules that has succeeded is not repeated, except by check()', async (t) => {
  let looks = 0
  let code = 4
  const run: Run = (file, args) => {
    if (!args.includes('-S')) return nodeWith({})(file, args)
    looks++
    return Promise.resolve({ code, stdout: '', stderr: code === 0 ? '' : 'Permission denied' })
  }
  const tool = await Iptables.open({ family: 'IPv4', run })
  await t.rejects(tool.ready(), { kind: 'denied', message: /denied/i })
  code = 0
  await tool.ready()
  await tool.ready()
  t.equal(looks, 2)
  await tool.check()
  t.equal(looks, 3)
})

t.test('both families search together for the backend', async (t) => {
  const asked: string[] = []
  const run: Run = (file, args) => {
    asked.push(file)
    return nodeWith({})(file, args)
  }
  const open = () =>
    Promise.all((['IPv4', 'IPv6'] as const).map((family) => Iptables.open({ family, run })))
  await open()
  const saves = asked.filter((file) => file.endsWith('-save'))
  t.equal(new Set(saves).size, 4)
  t.equal(saves.length, 6, 'the hint and the rules of nft, and legacy')
  asked.length = 0
  await open()
  t.same(asked, [])
})

t.test('a default that this kernel cannot run gives way to the other backend', async (t) => {
  const fails = {
    code: 1,
    stdout: '',
    stderr: 'iptables: Failed to initialize nft: Protocol not supported\n',
  }
  const legacy = { code: 0, stdout: 'iptables v1.8.9 (legacy)\n', stderr: '' }
  const missing = (file: string) =>
    Promise.reject(new IptablesError('missing', `run ${file}: ENOENT`))
  const node =
    (legacyVersion: typeof legacy | undefined): Run =>
    (file, args) => {
      if (!args.includes('--version')) return missing(file)
      if (!file.includes('legacy')) return Promise.resolve(fails)
      return legacyVersion ? Promise.resolve(legacyVersion) : missing(file)
    }
  const opened = await Iptables.open({ family: 'IPv4', run: node(legacy) })
  t.equal(opened.capabilities.backend, 'legacy')
  await t.rejects(Iptables.open({ family: 'IPv4', run: node(undefined) }), {
    kind: 'unsupported',
    message: /^iptables --version: failed to initialize nft: Protocol not supported/,
  })
  await t.rejects(Iptables.open({ family: 'IPv4', backend: 'nft', run: node(legacy) }), {
    kind: 'unsupported',
    message: /^iptables-nft --version: /,
  })
  await t.rejects(Iptables.open({ family: 'IPv6', run: missing }), {
    kind: 'missing',
    message: 'find ip6tables: not in PATH, /usr/sbin or /sbin; install iptables',
  })
  const busy: Run = (file) => Promise.reject(new IptablesError('failed', `run ${file}: EMFILE`))
  await t.rejects(Iptables.open({ family: 'IPv4', run: busy }), { message: 'run iptables: EMFILE' })
})

t.test('IT48: nf_tables without IPv4 is none, although its programs list nothing', async (t) => {
  const refusal = 'line 2: TABLE_ADD failed (Operation not supported): table nat\n'
  const node =
    (hasLegacy: boolean): Run =>
    (file, args) => {
      const isLegacy = file.includes('legacy')
      if (isLegacy && !hasLegacy)
        return Promise.reject(new IptablesError('missing', `run ${file}: ENOENT`))
      if (args.includes('--version')) {
        const stdout = `iptables v1.8.9 (${isLegacy ? 'legacy' : 'nf_tables'})`
        return Promise.resolve({ code: 0, stdout, stderr: '' })
      }
      const isRefused = file.startsWith('iptables') && file.endsWith('-restore') && !isLegacy
      const [code, stderr] = isRefused ? [4, refusal] : [0, '']
      return Promise.resolve({ code, stdout: '', stderr })
    }
  const { capabilities } = await Iptables.open({ family: 'IPv4', run: node(true) })
  t.equal(capabilities.backend, 'legacy')
  await t.rejects(Iptables.open({ family: 'IPv4', run: node(false) }), {
    kind: 'unsupported',
    message: /does not have IPv4: line 2: TABLE_ADD failed/,
  })
  await t.resolves(Iptables.open({ family: 'IPv6', run: node(false) }))
})

t.test('before 1.8 the name of a program has no backend', async (t) => {
  const run: Run = (file, args, options) =>
    file.includes('-legacy') || file.includes('-nft')
      ? Promise.reject(new IptablesError('missing', `run ${file}: ENOENT`))
      : nodeWith({}, 'v1.6.2')(file, args, options)
  const opened = await Iptables.open({ family: 'IPv4', backend: 'legacy', run })
  t.match(opened.capabilities, { backend: 'legacy', version: [1, 6, 2] })
  await t.rejects(Iptables.open({ family: 'IPv4', backend: 'nft', run }), {
    kind: 'missing',
    message: /^find iptables-nft: /,
  })
})

t.test('IT47: each version of iptables gets the wait option that it knows', async (t) => {
  const seen: string[] = []
  const argsOf = async (version: string) => {
    const run: Run = (file, args, options) => {
      seen.push([file, ...args].join(' '))
      return nodeWith({}, version)(file, args, options)
    }
    const tool = await Iptables.open({ family: 'IPv4', backend: 'legacy', run })
    seen.length = 0
    await tool.check()
    await tool.restore(new Batch().chain('nat', 'X'))
    return { seen: [...seen], ...tool.capabilities }
  }
  const list = (wait: string) => `iptables-legacy${wait} -t nat -S POSTROUTING`
  const restore = 'iptables-legacy-restore'
  const locked = `flock -w 5 -E 75 ${process.env.XTABLES_LOCKFILE ?? '/run/xtables.lock'} ${restore}`
  const now = await argsOf('v1.8.9 (legacy)')
  t.same(now.seen, [list(' -w 5'), `${restore} -w 5 --noflush`])
  t.match(now, { randomFully: true, waitsForLock: true, version: [1, 8, 9] })
  const before162 = await argsOf('v1.6.1')
  t.same(before162.seen, [list(' -w 5'), `${locked} --noflush`], 'the restore waits for nobody')
  t.match(before162, { randomFully: false, waitsForLock: false, version: [1, 6, 1] })
  t.same((await argsOf('v1.4.21')).seen, [list(' -w'), `${locked} --noflush`])
  t.same((await argsOf('v1.4.19')).seen, [list(''), `${locked} --noflush`])
  t.match([now, before162], [{ sparseMasks: true }, { sparseMasks: true }], 'legacy takes any mask')
})

t.test('a program that was ended because it took too long gets more time', async (t) => {
  const run: Run = async (file, args, options) => {
    const isLate = file.endsWith('-restore') && (options?.timeoutMs ?? Infinity) < 200_000
    if (isLate) throw new IptablesError('timed-out', 'no end')
    return nodeWith({})(file, args, options)
  }
  const tool = await Iptables.open({ family: 'IPv4', backend: 'nft', run })
  const batch = new Batch().chain('nat', 'X')
  await t.rejects(tool.restore(batch), { kind: 'timed-out', message: 'no end' })
  await t.resolves(tool.restore(batch))
})

t.test('a module that loads for longer than iptables waits is waited for', async (t) => {
  const answers = [
    "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Interrupted system call\n",
    'Another app is currently holding the xtables lock. Stopped waiting after 1s.\n',
    '',
  ]
  const run: Run = async (file, args, options) => {
    if (args.includes('--version')) return nodeWith({}, 'v1.8.9 (legacy)')(file, args, options)
    const stderr = answers.shift() ?? ''
    return { code: stderr === '' ? 0 : 4, stdout: '', stderr }
  }
  const tool = await Iptables.open({ family: 'IPv4', backend: 'legacy', run })
  await tool.check()
  t.same(answers, [], 'asked until it answers')
  answers.push('Another app is currently holding the xtables lock. Stopped waiting after 1s.\n')
  await t.rejects(tool.check(), { kind: 'locked', message: /lock/ })
})

const lockSkip = netnsSkip || programSkip('iptables-legacy') || programSkip('flock')
t.test('IT47: the xtables lock is respected', { skip: lockSkip }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'xtables-lock-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const lockFile = join(folder, 'lock')
  const netns = createNetns('iptables-lock')
  t.teardown(() => netns.remove())
  const inside: Run = (file, args, options) =>
    insideNamespace(netns.name, () => runProgram(file, args, options))
  const batch = new Batch().chain('nat', 'X')
  process.env.XTABLES_LOCKFILE = lockFile
  t.teardown(() => delete process.env.XTABLES_LOCKFILE)

  await t.test(
    'a lock held by another program is awaited as long as the caller allows',
    async (t) => {
      const asked: Locked[] = []
      const holder = spawn('flock', [lockFile, 'cat'], { stdio: ['pipe', 'pipe', 'inherit'] })
      holder.stdin.write('held\n')
      await once(holder.stdout, 'data')
      const open = (onLocked?: (locked: Locked) => boolean) =>
        Iptables.open({
          ...{ family: 'IPv4', backend: 'legacy', run: inside, waitSeconds: 1 },
          ...(onLocked ? { onLocked } : {}),
        })
      const impatient: unknown = await (
        await open()
      )
        .restore(batch)
        .catch((error: unknown) => error)
      t.match(impatient, {
        kind: 'locked',
        message: new RegExp(
          `; flock \\(pid ${holder.pid}\\) holds the xtables lock: wait until it is done`,
        ),
      })

      const patient = await open((locked) => {
        asked.push(locked)
        if (asked.length === 2) holder.stdin.end()
        return true
      })
      await patient.restore(batch)
      t.ok(await patient.listChain('nat', 'X'), 'and then it is written')
      t.ok(asked.length >= 2)
      t.match(asked[0], { action: 'restore', holder: `flock (pid ${holder.pid})` })
      t.ok(asked[1]!.waitedMs > asked[0]!.waitedMs)
    },
  )

  await t.test('the lock is taken for versions before 1.6.2, which do not take it', async (t) => {
    const tries: string[] = []
    // The restore of today takes the lock itself, and would wait for ours. So it gets another one.
    const old: Run = async (file, args, options) => {
      if (args.includes('--version')) return nodeWith({}, 'v1.6.1')(file, args, options)
      if (file !== 'flock') return inside(file, args, options)
      const script = 'flock -n "$XTABLES_LOCKFILE" true && echo free || echo held; exec "$@"'
      const restore = args.slice(args.indexOf('iptables-legacy-restore'))
      const env = ['env', `XTABLES_LOCKFILE=${lockFile}.other`, ...restore]
      const wrapped = ['sh', '-c', script, 'sh', 'ip', 'netns', 'exec', netns.name, ...env]
      const result = await runProgram(
        file,
        [...args.slice(0, -restore.length), ...wrapped],
        options,
      )
      tries.push(result.stdout.trim())
      return result
    }
    const socketTaken = createServer().listen('\0xtables')
    await once(socketTaken, 'listening')
    const tool = await Iptables.open({
      ...{ family: 'IPv4', backend: 'legacy', run: old, waitSeconds: 1 },
      onLocked: () => {
        tries.push('asked')
        socketTaken.close()
        return true
      },
    })
    await tool.restore(new Batch().chain('nat', 'OLD'))
    t.same(tries, ['asked', 'held'], 'the socket of 1.4 is respected, the file is locked')
    t.match(netns.exec('iptables-legacy', '-t', 'nat', '-S', 'OLD'), '-N OLD')
  })
})

t.test('IT49: a missing program gives a clear error', async (t) => {
  const run: Run = (file) => Promise.reject(new IptablesError('missing', `run ${file}: ENOENT`))
  const refusal: unknown = await Iptables.open({ family: 'IPv6', run }).catch(
    (error: unknown) => error,
  )
  t.match(refusal, {
    kind: 'missing',
    message: 'find ip6tables: not in PATH, /usr/sbin or /sbin; install iptables',
  })
})

/** What a process in the namespace says. */
function chainNamesIn(netns: NetworkNamespace, family: string): ReadonlySet<string> {
  const module = JSON.stringify(new URL('../../lib/modes/chain-names.js', import.meta.url))
  const ask = `console.log(JSON.stringify([...(await chainNames('${family}'))]))`
  const program = `import { chainNames } from ${module}; ${ask}`
  const text = netns.exec(process.execPath, '--input-type=module', '-e', program)
  return new Set(JSON.parse(text) as readonly string[])
}

for (const backend of ['nft', 'legacy'] as const satisfies readonly Backend[]) {
  const skip = netnsSkip || programSkip(`iptables-${backend}`)
  t.test(`on the kernel, ${backend} backend`, { skip }, async (t) => {
    const netns = createNetns(`iptables-lib-${backend}`)
    t.teardown(() => netns.remove())
    const run: Run = (file, args, options) =>
      insideNamespace(netns.name, () => runProgram(file, args, options))
    const open = (family: 'IPv4' | 'IPv6') =>
      Iptables.open({ family, backend, run, waitSeconds: 1 })
    const iptables = await open('IPv4')

    t.equal(iptables.capabilities.backend, backend)
    await iptables.check()

    const comments = hostile.filter((text) => text !== '')
    const batch = new Batch().chain('nat', 'X').chain('nat', 'Y')
    for (const comment of comments) batch.append('nat', 'X', rule({ comment, jump: 'Y' }))
    await iptables.restore(batch)
    const listed = (await iptables.listChain('nat', 'X'))?.map((line) => splitArguments(line))
    t.same(
      listed,
      comments.map((text) => ['-m', 'comment', '--comment', printableComment(text), '-j', 'Y']),
      'hostile comments reach the kernel as comments and nothing else',
    )

    await iptables.restore(new Batch().delete('nat', 'X', rule({ comment: '--jump', jump: 'Y' })))
    t.equal((await iptables.listChain('nat', 'X'))?.length, comments.length - 1)
    t.equal(await iptables.listChain('nat', 'NONE'), undefined)

    const bad = new Batch()
      .chain('nat', 'Z')
      .append('nat', 'Z', rule({ jump: 'RETURN' }))
      .append('nat', 'Z', rule({ matches: [{ name: 'nosuch', args: [] }], jump: 'RETURN' }))
    const refusal: unknown = await iptables.restore(bad).catch((error: unknown) => error)
    t.match(refusal, { kind: 'unsupported', line: 4, lineText: '-A Z -m nosuch -j RETURN' })
    t.equal(await iptables.listChain('nat', 'Z'), undefined, 'nothing of a refused batch stays')

    const works = [
      rule({ matches: [bytecode([[6, 0, 0, 65535]])], jump: 'RETURN' }),
      rule({ matches: [addressType('dst', 'LOCAL'), markIsNot(0x4000)], jump: 'RETURN' }),
      rule({ matches: [seenRecently('LIST', 60), connectionState('NEW')], jump: 'RETURN' }),
      rule({ matches: [remember('LIST')], jump: 'RETURN' }),
      rule({ protocol: 'sctp', matches: [destinationPort('sctp', [1, 9])], jump: 'RETURN' }),
    ]
    for (const one of works) t.equal(await iptables.supports('nat', one), true, one.text)
    const unknown = rule({ matches: [{ name: 'nosuch', args: [] }] })
    t.equal(await iptables.supports('nat', unknown), false)
    const [first, second] = works as [Rule, Rule]
    t.same(await iptables.supportsEach('nat', works), [true, true, true, true, true])
    t.same(await iptables.supportsEach('nat', [first, unknown, second]), [true, false, true])
    t.equal(
      await iptables.listChain('nat', 'IPTABLES-TS-PROBE'),
      undefined,
      'a probe leaves nothing',
    )

    const nat = (await iptables.save('nat')).find(({ table }) => table === 'nat')
    t.equal(nat?.chains.get('X')?.rules.length, comments.length - 1)
    t.equal(await backendInUse(run), backend, 'IT48: and its rules are found')
    const nowhere = ['raw', 'Z'] as const
    t.equal(await iptables.hasAny([nowhere, ['nat', 'Z']]), false)
    t.equal(await iptables.hasAny([nowhere, ['nat', 'X']]), true)
    const started: string[] = []
    const noting: Run = (...args) => (started.push(args[0]), run(...args))
    const names = chainNamesIn(netns, 'IPv4')
    const listing = await Iptables.open({
      ...{ family: 'IPv4', backend, run: noting },
      chainNames: () => Promise.resolve(names),
    })
    started.length = 0
    t.equal(await listing.hasAny([nowhere, ['nat', 'Z']]), false)
    t.equal(await listing.hasAny([nowhere, ['nat', 'X']]), true)
    t.equal(started.length, backend === 'nft' ? 0 : 2, 'listed chains need no program')
    const tables = (await iptables.save()).map(({ table }) => table)
    t.notOk(tables.includes('raw'), 'to ask makes no table')

    if (backend === 'nft') {
      const jump = { table: 'nat', chain: 'POSTROUTING', rule: rule({ jump: 'X' }) } as const
      await iptables.restore(new Batch().append('nat', 'POSTROUTING', jump.rule))
      netns.exec('nft', 'add rule ip nat POSTROUTING oifname wan0 masquerade')
      await iptables.check()
      const seen = async (options: object, wants?: () => boolean) => {
        const reader = await Iptables.open({ family: 'IPv4', backend, run, ...options })
        const saved = await reader.save('nat', wants)
        const chains = [...(saved[0]?.chains.values() ?? [])]
        return Object.fromEntries(chains.map(({ name, rules }) => [name, rules.length] as const))
      }
      const chainNames = () => Promise.resolve(chainNamesIn(netns, 'IPv4'))
      const hidden = { message: /leaves out table nat/ }
      await t.rejects(seen({ sought: [jump] }), hidden, 'what is hidden is not absent')
      await t.rejects(iptables.counters('nat'), hidden, 'nor uncounted')
      t.strictSame(await seen({ sought: [jump] }, () => true), { POSTROUTING: 1 })
      const all = await seen({ sought: [jump], chainNames })
      t.match(all, { X: comments.length - 1, POSTROUTING: 1 })
    }

    const ip6tables = await open('IPv6')
    await ip6tables.restore(
      new Batch()
        .chain('nat', 'X')
        .append('nat', 'X', rule({ destination: 'fd00::1/128', jump: 'RETURN' })),
    )
    t.same(await ip6tables.listChain('nat', 'X'), ['-d fd00::1/128 -j RETURN'])
  })
}

t.test('the example of the README runs unchanged', { skip: netnsSkip }, async (t) => {
  const readme = readFileSync('lib/kernel/iptables/README.md', 'utf8')
  const example = /```ts\n([^]*?)```/.exec(readme)?.[1] ?? ''
  // The folder is inside the package, where the name of the package leads to its exports.
  const folder = mkdtempSync(join('build', 'readme-'))
  const netns = createNetns('iptables-readme')
  t.teardown(() => {
    netns.remove()
    rmSync(folder, { recursive: true })
  })
  const file = join(folder, 'example.mjs')
  writeFileSync(file, `const anything = ${JSON.stringify(hostile[0])}\n${example}`)
  netns.exec(process.execPath, file)
  const rules = netns.exec('iptables', '-t', 'nat', '-S', 'WEB')
  t.match(rules, '-p tcp -m comment --comment "x\\" -j ACCEPT" -m tcp --dport 80 -j DNAT')
  t.match(rules, '--to-destination 10.0.0.7:8080')
})
