import { runCommand } from '../support/run-command.js'
import t from 'tap'
import { spawn } from 'node:child_process'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { checkModes, formatChecks } from '../../lib/cli/check.js'
import { cleanup } from '../../lib/cli/cleanup.js'
import { defaultConfig } from '../../lib/config/load.js'
import { groups } from '../../lib/config/key.js'
import { keyEntries } from '../../lib/config/keys.js'
import { get } from '../../lib/cli/seen-node.js'
import { flowsQuery } from '../../lib/cli/flow-question.js'
import { createProgram } from '../../lib/cli/program.js'
import { commandThread } from '../support/command-thread.js'
import { programSkip } from '../support/netns.js'
import { untilTrue } from '../support/until.js'
import type { Finding, Log, ModeDefinition } from '../../lib/modes/mode.js'

const main = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))

const kubeProxy = commandThread()
/** The program itself. */
const started = (...args: readonly string[]) => runCommand(process.execPath, [main, ...args])

t.test('a reader that is slower than the command gets everything', async (t) => {
  const ports = Array.from({ length: 20_000 }, (_, index) => ({
    name: `p${index}`,
    port: index + 1,
  }))
  const spec = { clusterIP: '10.96.0.10', clusterIPs: ['10.96.0.10'], ports }
  const object = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'web' }, spec }
  const folder = t.testdir({ 'web.json': JSON.stringify(object) })
  const args = [main, 'render', '--mode', 'iptables', '--manifests', folder]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  // The test reads only after the program has ended or its pipe is full.
  await Promise.race([once(child, 'exit'), delay(3_000)])
  let text = ''
  for await (const piece of child.stdout.setEncoding('utf8')) text += String(piece)
  t.match(text, /--dport 20000 /, 'the last port')
  t.match(text, /COMMIT\n$/, 'the last line')
})

t.test('output that cannot be written is a failure with one line', async (t) => {
  const folder = t.testdir({
    'web.yaml':
      'apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n',
  })
  const says = /^(kube-proxy|error): the output cannot be written: E[A-Z]+: [^\n]+\n$/
  const ended = async (file: string, ...args: readonly string[]) => {
    const { code, stderr } = await runCommand(file, args)
    t.equal(code, 1, args.join(' '))
    t.match(stderr, says)
  }
  const manifests = ['--manifests', folder]
  const commands = [
    ...[['--version'], ['--help'], ['completion', 'bash'], ['render', ...manifests]],
    ['explain', 'web', ...manifests],
  ]
  if (process.platform === 'linux') {
    const full = ['-c', 'exec "$@" >/dev/full', 'sh', process.execPath]
    for (const args of commands) await ended('sh', ...full, main, ...args)
    await ended('sh', ...full, join(main, '../kubectl/main.js'), '--help')
  }
  // As on a full disk, the beginning of the help fits.
  const cut = ['-c', 'ulimit -f 8; exec "$@" >"$0"', join(folder, 'help'), process.execPath, main]
  await ended('sh', ...cut, '--help')
})

t.test('top takes an interval as a duration, or in seconds', async (t) => {
  const top = (interval: string) =>
    kubeProxy('top', '--daemon', '127.0.0.1:1', '--interval', interval)
  for (const interval of ['50ms', '0', 'soon']) {
    t.match(await top(interval), { code: 2, stderr: /--interval: ".*" is not a time from 100ms/ })
  }
  for (const interval of ['1.5s', '0.5'])
    t.match(await top(interval), { stderr: /no proxy answers/ })
})

t.test('without a proxy flows prints no empty table, and advises no flag of others', async (t) => {
  const { code, stdout, stderr } = await started('flows', '--daemon', '127.0.0.1:1')
  t.same({ code, stdout }, { code: 2, stdout: '' })
  t.match(stderr, /; start kube-proxy, or give --daemon IP:port if its metrics are elsewhere\n$/)
})

t.test('a proxy that accepts and does not answer is told from one that is not there', async (t) => {
  const server = createServer(() => {})
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close().closeAllConnections())
  const soon = AbortSignal.timeout(50)
  t.capture(AbortSignal, 'timeout', () => soon)
  const { port } = server.address() as AddressInfo
  await t.rejects(get(`127.0.0.1:${port}`, '/configz'), {
    message: /nothing came within 10 s; look at the log and the load of kube-proxy if it runs/,
  })
})

t.test('flows --watch goes on with a proxy that was restarted', async (t) => {
  // The old proxy has kept no line. The first line of the new one has number 1.
  const line = {
    ...{ time: '', event: 'opened', verdict: 'forwarded', why: '', protocol: 'TCP' },
    ...{ client: '10.0.0.1:4000', clientPod: '', service: 'default/web', address: '10.96.0.10:80' },
    ...{ endpoint: '10.0.0.2:80', endpointPod: '' },
  }
  const answers = new Map([
    ['limit=100', { flows: [], next: 7, leftOut: 3 }],
    ['after=7', { flows: [], next: 1, leftOut: 0 }],
    ['after=0', { flows: [line], next: 1, leftOut: 2 }],
  ])
  let isAway = true
  const server = createServer(({ url = '', socket }, reply) => {
    const answer = answers.get(url.split('?')[1] ?? '')
    if (isAway && url.endsWith('after=7')) {
      isAway = false
      socket.destroy()
      return
    }
    reply.writeHead(answer ? 200 : 500).end(JSON.stringify(answer))
  }).listen(0, '127.0.0.1')
  t.teardown(() => server.close())
  await once(server, 'listening')
  const daemon = `127.0.0.1:${(server.address() as AddressInfo).port}`
  const args = [main, 'flows', '--watch', '-o', 'json', '--daemon', daemon]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  let [printed, notes] = ['', '']
  child.stdout.on('data', (data: Buffer) => (printed += data.toString()))
  child.stderr.on('data', (data: Buffer) => {
    notes += data.toString()
    if (notes.includes('2 lines')) child.kill()
  })
  const timer = setTimeout(() => child.kill(), 600_000)
  await once(child, 'close')
  clearTimeout(timer)
  t.match(printed, JSON.stringify(line))
  t.match(notes, /^… and 3 lines.*\nno proxy answers on .*\n… and 2 lines/)
})

t.test(
  'top gives the terminal back while it is stopped, and stops only under a shell',
  { skip: programSkip('script') },
  async (t) => {
    const server = createServer((_, reply) => reply.end('')).listen(0, '127.0.0.1')
    t.teardown(() => server.close())
    await once(server, 'listening')
    const folder = t.testdir({
      'web.yaml':
        'apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, ports: [{name: a, port: 80}, {name: b, port: 81}]}\n',
    })
    const daemon = `127.0.0.1:${(server.address() as AddressInfo).port}`
    const top = `${process.execPath} ${main} top --mode userspace --manifests ${folder} --daemon ${daemon}`
    const [enter, leave] = [
      '\\u001b\\[\\?1049h\\u001b\\[\\?25l',
      '\\u001b\\[\\?25h\\u001b\\[\\?1049l',
    ]
    const [ctrlZ, ctrlC] = ['\u001A', '\u0003']
    for (const [command, meanwhile] of [
      [`set -m; ${top}; echo 'the shell'; fg`, 'the shell.*'],
      [`exec ${top}`, ''],
    ] as const) {
      const terminal = spawn('script', ['-qec', command, '/dev/null'], {
        env: { ...process.env, SHELL: '/bin/sh', TERM: 'xterm' },
        stdio: ['pipe', 'pipe', 'inherit'],
      })
      // A program that is stopped ends with its terminal.
      t.teardown(() => terminal.kill('SIGKILL'))
      let shown = ''
      terminal.stdout.on('data', (data: Buffer) => (shown += data.toString()))
      const until = async (wanted: string) => {
        while (!new RegExp(wanted, 's').test(shown) && terminal.exitCode === null) await delay(50)
        t.match(shown, new RegExp(wanted, 's'))
      }
      // The terminal of `script` does not know its size.
      await until(`${enter}.*default/web:a.*default/web:b`)
      terminal.stdin.write(ctrlZ)
      await until(`${leave}.*${meanwhile}${enter}.*default/web`)
      terminal.stdin.write(ctrlC)
      await once(terminal, 'close')
      t.match(shown, new RegExp(`${leave}\\s*$`))
      t.equal(terminal.exitCode, 0)
    }
    const printing = ['timeout', '600', 'script', '-qec', top, '/dev/null']
    const dumb = await runCommand('env', ['SHELL=/bin/sh', 'TERM=dumb', ...printing])
    t.match(dumb.stdout, /default\/web:b/, 'a dumb terminal gets the numbers once')
    t.notMatch(dumb.stdout, '\u001b')
  },
)

t.test('flows takes addresses, CIDRs and pods as clients, and names what is none', (t) => {
  const query = (from: string) =>
    flowsQuery({ service: undefined, from, verdict: undefined, limit: '9' }).get('from')
  for (const from of ['10.0.0.0/8', 'fd00::/64', 'fd00::1', 'web-1', 'default/web-1', 'a.b']) {
    t.equal(query(from), from)
  }
  for (const from of ['10.0.0.0/99', 'Web', 'a/b/c', '', '/x', 'fd00::/200', '10.1.1.300']) {
    t.throws(() => query(from), { message: /^--from: .* is no address/ }, from)
  }
  t.end()
})

t.test('render takes the manifests of the configuration, as the daemon does', async (t) => {
  const web =
    'apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n'
  const folder = t.testdir({
    services: { 'web.yaml': web },
    'config.yaml': `apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\nmanifests: ${t.testdirName}/services\n`,
  })
  const { code, stdout } = await started('render', '--config', `${folder}/config.yaml`)
  t.equal(code, 0)
  t.match(stdout, /-d 10\.96\.0\.10\/32/)
})

t.test('a wrong flag, value or file gives exit code 2 and is named', async (t) => {
  const folder = t.testdir({
    'bad.yaml':
      'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmoed: x\n',
  })
  const cases: readonly (readonly [args: readonly string[], says: RegExp])[] = [
    ...['render', 'explain'].map((command): [string[], RegExp] => [
      [command, '--proxy-mode', 'kernelspace', '--manifests', folder],
      /'kernelspace' is invalid.* ipvs\.\nkube-proxy: this program has no kernelspace.*winuserspace/,
    ]),
    [['--proxy-mod=ipvs'], /unknown option '--proxy-mod=?.*did you mean --proxy-mode\?/s],
    [
      ['explain', 'x', '--manifest', 'y'],
      /unknown option '--manifest'.*did you mean --manifests\?/s,
    ],
    [
      ['explain', 'x', '--userspace-portals=auto'],
      /--userspace-portals is for running the proxy, not for explain; set its key .* --config/,
    ],
    [['--proxy-mode=ipvz'], /^kube-proxy: --proxy-mode: "ipvz" is not one of .*auto\n$/],
    [['--conntrack-min'], /option '--conntrack-min <value>' argument missing/],
    [['--config', '/does/not/exist'], /--config: \/does\/not\/exist cannot be read/],
    [[`--config=${folder}/bad.yaml`], /bad\.yaml:3: moed: "x": unknown key; did you mean mode\?/],
    [
      ['serve'],
      /unknown command 'serve'; the commands are render, explain, diff, trace, flows, top, check/,
    ],
    [['expalin', 'web'], /^error: unknown command 'expalin'; did you mean explain\?\n$/],
    [['exp', 'web'], /^error: unknown command 'exp'; did you mean explain\?\n$/],
    [['foo'], /^error: unknown command 'foo'; the commands are render, /],
    [['help', 'chek'], /^error: unknown command 'chek'; did you mean check\?\n$/],
    [['playground'], /playground is only in the npm package: npx kube-proxy-ts playground\n$/],
    [['explain'], /missing required argument 'target'\nkube-proxy: usage: .* <target>\n$/],
    [['top', '-x'], /unknown option '-x'\nkube-proxy: kube-proxy top --help lists the flags\n$/],
    [['--zzzzzzzz'], /unknown option .*\nkube-proxy: kube-proxy --help lists the flags\n$/],
    [['diff', '--daemon', '127.0.0.1:1'], /no proxy answers .*--kubeconfig or --manifests\n$/],
    [['explain', 'web', '--daemon', 'foo'], /--daemon: "foo" is not IP:port, such as 127/],
    [['flows', '--daemon', '127.0.0.1'], /--daemon: "127.0.0.1" is not IP:port/],
    [['diff', '--daemon', 'http://127.0.0.1:1'], /--daemon: "http:.*" is not IP:port/],
    [['top', '--daemon', '::1:10249'], /--daemon: .* is not IP:port, such as .* or \[::1\]/],
    [['top', '--daemon', '127.0.0.1:99999'], /--daemon: .* is not IP:port/],
    [['--cleanup', 'extra'], /too many arguments.*"extra" belongs to no flag/s],
    [['--flows', 'true', '-v', '2'], /"true" belongs to no flag; .*, as in --flows=true\n$/],
    [
      ['--dry-run', 'explain', 'web'],
      /the command comes before its flags: kube-proxy explain …\n$/,
    ],
    [['trace', '192.0.2.1:80', '--timeout', '1x'], /--timeout: "1x" is not a time from 100ms/],
    [['render', '--mode', 'bogus', '--manifests', 'x'], /--proxy-mode <mode>.*invalid/],
    [['render'], /^kube-proxy: --manifests: say which file or folder has the objects\n$/],
    [['render', '--manifests', 'x', '--cluster-cidr', 'y'], /--cluster-cidr: "y" is not a CIDR/],
    [['render', '--manifests', 'x', '--config', `${folder}/bad.yaml`], /bad\.yaml:3: moed/],
  ]
  await Promise.all(
    cases.map(async ([args, says], index) => {
      const { code, stdout, stderr } = await (index === 0 ? started : kubeProxy)(...args)
      t.equal(code, 2, args.join(' '))
      t.match(stderr, says)
      t.equal(stdout, '')
    }),
  )
})

t.test('L24: --version and --help end with exit code 0', async (t) => {
  const [version, help] = await Promise.all([started('--version'), started('--help')])
  t.match(version, { code: 0, stdout: /^kube-proxy-ts v\d+\.\d+\.\d+ \(behaves as .*v1\.36\)\n$/ })
  t.equal(help.code, 0)
  let position = 0
  // nftables has no flags, and the flags for Windows are in the group without effect.
  for (const group of groups.filter((name) => name !== 'Windows' && name !== 'nftables')) {
    const found = help.stdout.indexOf(`\n${group}:\n`)
    t.ok(found > position, `${group} stands in its place`)
    position = found
  }
  for (const [, { flags }] of keyEntries) {
    for (const flag of flags) t.ok(help.stdout.includes(` --${flag}`), flag)
  }
  t.match(help.stdout, /--masquerade-all {3,}Masq/, 'a switch shows no value')
  t.match(
    help.stdout,
    /--proxy-mode <name> .*\[userspace, winuserspace, iptables, ipvs, nftables, ebpf, auto\]/,
  )
  t.match(help.stdout, /--iptables-masquerade-bit <n> .*\(default 14\)/)
  t.match(help.stdout, /--conntrack-udp-timeout <duration> +[^(\n]*\n/, 'zero is no news')
  t.notMatch(help.stdout, /logtostderr/, 'what is retired is not advertised')
  t.match(help.stdout, /\n {2}render .*\n(.*\n)* {2}check /)
})

t.test('help as a command is --help', async (t) => {
  for (const command of [[], ['explain']]) {
    const [asked, flag] = await Promise.all([
      kubeProxy('help', ...command),
      kubeProxy(...command, '--help'),
    ])
    t.match(asked, { code: 0, stderr: '' })
    const usage = (text: string) => text.slice(0, text.indexOf('\n'))
    t.equal(usage(asked.stdout), usage(flag.stdout))
    t.equal(
      asked.stdout.includes('\nConfiguration:\n'),
      command.length === 0,
      'has flags of its own',
    )
  }
})

t.test('L23: --write-config-to writes what the flags set, and --config reads it', async (t) => {
  const file = join(t.testdir({}), 'out.yaml')
  const { code } = await started('--write-config-to', file, '--proxy-mode=ipvs', '--logtostderr')
  t.equal(code, 0)
  t.match(readFileSync(file, 'utf8'), /\nmode: ipvs\n/)
  const again = await started(`--config=${file}`, `--write-config-to=${file}.2`)
  t.equal(again.code, 0)
  t.equal(readFileSync(`${file}.2`, 'utf8'), readFileSync(file, 'utf8'))
})

t.test('flags reach the run command unchanged and in order', async (t) => {
  const { program, argv } = await createProgram([
    '-v',
    '2',
    '--cluster_cidr',
    '10.0.0.0/8',
    '--dry-run',
  ])
  t.same(argv, ['--v', '2', '--cluster-cidr', '10.0.0.0/8', '--dry-run=true'])
  t.same(program.commands.length, 0, 'no subcommand is loaded for a start')
})

const log: Log & { readonly lines: string[] } = {
  lines: [],
  debug: () => undefined,
  info: (_fields, message) => log.lines.push(message),
  warn: () => undefined,
  error: () => undefined,
}

function definition(name: 'ipvs' | 'iptables', findings: readonly Finding[]): ModeDefinition {
  const refuse = () => Promise.reject(new Error('not in this test'))
  return {
    summary: `the ${name} mode`,
    probe: () => Promise.resolve(findings),
    syncPeriods: () => ({ minMs: 1, syncMs: 1 }),
    planner: () => {
      throw new Error('not in this test')
    },
    create: refuse,
    differences: refuse,
    cleanup: name === 'ipvs' ? refuse : () => Promise.resolve(),
  }
}

const ok = { what: 'iptables', ok: true, required: true, seen: 'v1.8.9', fix: '' }
const missing = {
  what: 'kernel module ip_vs',
  ok: false,
  required: true,
  seen: 'not found',
  fix: 'modprobe ip_vs',
}
const loaders = {
  ipvs: () => Promise.resolve(definition('ipvs', [missing])),
  iptables: () => Promise.resolve(definition('iptables', [ok, { ...missing, required: false }])),
  nftables: () => Promise.reject(new Error('no koffi')),
}

t.test('check reports which modes run, what others lack, and the best mode', async (t) => {
  const checks = await checkModes(log, loaders)
  t.same(
    checks.map(({ mode, runs }) => [mode, runs]),
    [
      ['ipvs', false],
      ['iptables', true],
      ['nftables', false],
    ],
  )
  const text = formatChecks(checks)
  t.match(
    text,
    /^ipvs {9}does not run {3}the ipvs mode\n {2}MISSING {2}kernel module ip_vs {2}not found\n +→ modprobe ip_vs\n/,
  )
  t.match(
    text,
    /iptables {5}runs {3}the iptables mode\n {2}ok {7}iptables +v1\.8\.9\n {2}without {2}kernel/,
  )
  t.match(text, /nftables mode {2}no koffi/)
  t.match(text, /--proxy-mode=iptables is the best here\.\n$/)
  t.match(formatChecks([]), /No mode runs here/)
})

t.test('L15: cleanup runs for every mode, and names the modes that failed', async (t) => {
  await t.rejects(cleanup(log, { loaders }), {
    name: 'KernelError',
    message: 'clean up this node: ipvs: not in this test; nftables: no koffi',
  })
  t.same(log.lines, ['Cleaned up'])
  await cleanup(log, { loaders: { iptables: loaders.iptables } })
})

t.test('L15: cleanup says that a proxy runs, which writes its rules again', async (t) => {
  const server = createServer((_request, reply) => reply.end('nftables')).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const config = { ...defaultConfig(), metricsBindAddress: `127.0.0.1:${port}` }
  const warnings: string[] = []
  const warn = (_fields: object, message: string) => warnings.push(message)
  const clean = () => cleanup({ ...log, warn }, { loaders: {}, config })
  await clean()
  t.match(warnings, [/^A proxy runs here and writes its rules again/])
  server.close()
  await once(server, 'close')
  await clean()
  t.equal(warnings.length, 1)
  let asked = 0
  const note = () => asked++
  subscribe('http.client.request.start', note)
  t.teardown(() => unsubscribe('http.client.request.start', note))
  await cleanup(log, { loaders: {}, config: { ...config, metricsBindAddress: '' } })
  t.equal(asked, 0, 'a proxy without such an address cannot be asked')
})

t.test('warnings of Node.js appear as lines of the log', async (t) => {
  const logging = new URL('../../lib/cli/logging.js', import.meta.url).href
  const script = `
    import { logWarnings, processLogger } from '${logging}'
    logWarnings(processLogger({ format: 'json', verbosity: 0 }))
    process.emitWarning('too many', 'LeakWarning')`
  const args = ['--input-type=module', '--eval', script]
  const { stderr } = await runCommand(process.execPath, args)
  const lines = stderr.trim().split('\n')
  t.equal(lines.length, 1)
  t.match(JSON.parse(lines[0] ?? ''), {
    level: 'warn',
    warning: 'LeakWarning',
    message: 'too many',
  })
})

t.test('a reader of the log that hangs does not stop the program', async (t) => {
  const logging = new URL('../../lib/cli/logging.js', import.meta.url).href
  const script = `
    import { processLogger } from '${logging}'
    const wait = Atomics.wait
    let waits = 0
    Atomics.wait = (...args) => (waits++, wait(...args))
    const log = processLogger({ format: 'json', verbosity: 0 })
    const text = 'x'.repeat(1_000)
    let number = 0
    const line = () => log.info({ number: number++, text }, 'a line')
    while (number < 2_000) line()
    console.log(waits)
    process.stdin.on('data', line)`
  const args = ['--input-type=module', '--eval', script]
  const child = spawn(process.execPath, args, { stdio: 'pipe' })
  const [waits] = (await once(child.stdout, 'data')) as [Buffer]
  t.equal(Number(waits), 0, 'the program waits for no reader')
  let stderr = ''
  child.stderr.on('data', (data: Buffer) => (stderr += data.toString()))
  await untilTrue(() => {
    child.stdin.write('x')
    return /"lines":.*\n.*\n/.test(stderr)
  })
  child.stdin.end()
  await once(child, 'close')
  const lines = stderr
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { level: string; number?: number; lines?: number })
  const told = lines.findIndex((line) => line.lines !== undefined)
  const [before = NaN, after = NaN] = [lines[told - 1]?.number, lines[told + 1]?.number]
  t.match(lines[told], { level: 'warn', lines: after - before - 1 })
  t.ok(after > 2_000, `${before} lines waited`)
})
