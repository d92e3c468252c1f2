import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { programSkip } from '../support/netns.js'
import t from 'tap'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const place = mkdtempSync(join(tmpdir(), 'package-'))
t.teardown(() => rmSync(place, { recursive: true, force: true }))
const project = join(place, 'project')
const modules = join(project, 'node_modules')
const installed = join(modules, 'kube-proxy-ts')

/** An environment without settings, cache or registry of a user. */
const env = {
  ...process.env,
  HOME: place,
  npm_config_cache: join(place, 'cache'),
  npm_config_offline: 'true',
  npm_config_update_notifier: 'false',
}

/** The output of the program; throws its errors. */
function run(folder: string, file: string, ...args: string[]): string {
  const options = { cwd: folder, env, encoding: 'utf8' } as const
  const { status, stdout, stderr, error } = spawnSync(file, args, options)
  if (error) throw error
  if (status !== 0) throw new Error(`${file} ${args.join(' ')}: ${status}\n${stdout}${stderr}`)
  return stdout
}

interface Packed {
  readonly filename: string
  readonly files: readonly { readonly path: string; readonly mode: number }[]
}

/** Packs the folder. The output of scripts must not mix with the JSON of npm. */
function pack(folder: string, scripts = '--foreground-scripts=false'): Packed | undefined {
  const to = ['--pack-destination', place]
  const [packed] = JSON.parse(run(folder, 'npm', 'pack', '--json', scripts, ...to)) as Packed[]
  return packed
}

const packed = pack(root, '--ignore-scripts')
const paths = packed?.files.map(({ path }) => path) ?? []

/** Makes what `npm install` makes: the package, its dependencies, and links to the programs. */
function install(): void {
  mkdirSync(installed, { recursive: true })
  run(place, 'tar', '-xzf', packed?.filename ?? '', '-C', installed, '--strip-components=1')
  const folders = run(root, process.execPath, 'scripts/runtime-packages.mjs').trim().split('\n')
  run(root, 'cp', '-RL', '--parents', ...folders, project)
  const dependencies = { 'kube-proxy-ts': '*' }
  writeFileSync(join(project, 'package.json'), JSON.stringify({ name: 'empty', dependencies }))
  run(project, 'npm', 'rebuild', '--ignore-scripts')
  copyFileSync(join(installed, 'examples/services/web.yaml'), join(project, 'web.yaml'))
}

install()
const readme = readFileSync(join(installed, 'README.md'), 'utf8')
const example = /## In a program\n\n```ts\n([^]*?)```/.exec(readme)?.[1] ?? ''

t.test('the package has only the files of `files`: no tests, no sources, no source maps', (t) => {
  const program = /^build\/(lib|cjs)\/.*(\.js|\.d\.ts|\/browser\/(index\.html|style\.css))$/
  const manual = /^build\/man\/(kube-proxy(-ts)?\.8|kubectl-svcproxy\.1)$/
  const site = /^build\/site\/(index\.html|site\.js|style\.css)$/
  const text = /^(examples\/.*|docs\/.*|LICENSE|README\.md|CHANGELOG\.md|SECURITY\.md)$/
  const others = ['package.json', 'build/cjs/package.json']
  const strange = paths.filter(
    (path) =>
      ![program, manual, site, text].some((one) => one.test(path)) && !others.includes(path),
  )
  t.same(strange, [])
  t.notMatch(paths.join('\n'), /\.test\.|^build\/test/m)
  for (const path of ['LICENSE', 'README.md', 'CHANGELOG.md', 'build/lib/page/browser/page.js'])
    t.ok(paths.includes(path), path)
  const { bin } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { bin: object }
  const executable = packed?.files.filter(({ mode }) => (mode & 0o111) !== 0)
  const programs = executable?.filter(({ path }) => path.startsWith('build/'))
  t.same(programs?.map(({ path }) => path).sort(), Object.values(bin).sort())
  t.end()
})

t.test('both programs run: kube-proxy, and kube-proxy-ts with the laboratory', (t) => {
  const kubeProxy = join(modules, '.bin', 'kube-proxy')
  t.match(run(project, kubeProxy, '--version'), /^kube-proxy-ts v\d+\.\d+\.\d+ /)
  const everything = run(project, 'npx', 'kube-proxy-ts', '--help')
  t.match(everything, /^Usage: kube-proxy-ts /)
  t.match(everything, /^ +playground .*\n +apiserver /m)
  t.notMatch(run(project, kubeProxy, '--help'), /^ +playground /m)
  t.match(run(project, join(modules, '.bin', 'kubectl-svcproxy'), '--help'), 'kubectl svcproxy')
  const manifests = ['--manifests', join(installed, 'examples/services')]
  const rendered = run(project, kubeProxy, 'render', '--mode', 'nftables', ...manifests)
  t.match(rendered, /add table ip kube-proxy/)
  t.match(rendered, /10\.96\.0\.10/)
  t.end()
})

t.test('the plug-in of kubectl is one file, too, that needs no other', (t) => {
  const file = join(place, 'kubectl-svcproxy')
  run(root, process.execPath, 'scripts/kubectl-plugin.mjs', file)
  t.notOk(readFileSync(file, 'utf8').includes('node_modules/@kubernetes/'), 'kubectl has it')
  t.match(run(place, file, '--version'), /^kube-proxy-ts v\d+\.\d+\.\d+ /)
  t.match(run(place, file, 'explain', '--help'), /^Usage: kubectl svcproxy explain /)
  t.match(run(place, join(place, 'kubectl_complete-svcproxy'), 'to'), /^top\t.*\n:4\n$/)
  // In a folder of a package of modules, such as a checkout of this one.
  writeFileSync(join(place, 'package.json'), '{ "type": "module" }')
  t.match(run(place, file, '--version'), /^kube-proxy-ts v/)
  rmSync(join(place, 'package.json'))
  t.end()
})

t.test('in an empty folder: check, render, explain, and by npx the playground', (t) => {
  // Npx costs more than the command.
  const all = (...args: string[]) => run(project, join(modules, '.bin', 'kube-proxy-ts'), ...args)
  const npx = (...args: string[]) => run(project, 'npx', 'kube-proxy-ts', ...args)
  const manifests = ['--manifests', 'web.yaml']
  t.match(all('check'), /^userspace +(runs|does not run)/m)
  t.match(all('render', '--proxy-mode', 'ipvs', ...manifests), /10\.96\.0\.10/)
  t.match(all('explain', 'web', '--proxy-mode', 'iptables', ...manifests), /KUBE-SVC-/)
  // Without the right to make namespaces it runs on loopback, and the tour ends well too.
  t.match(npx('playground', '--mode', 'userspace', '--once'), 'Everything answered as it should.')
  t.end()
})

t.test('npx in an empty folder, as nobody: the playground with a simulated cluster', async (t) => {
  chmodSync(place, 0o755)
  const asNobody = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {}
  const home = join(place, 'home')
  mkdirSync(home, { mode: 0o777 })
  chmodSync(home, 0o777)
  const own = { ...env, HOME: home, npm_config_cache: join(home, 'cache') }
  const args = ['kube-proxy-ts', 'playground', '--simulated', '--port', '0']
  const played = spawn('npx', args, { cwd: project, env: own, detached: true, ...asNobody })
  const ended = once(played, 'close')
  let said = ''
  const opened = new Promise<string>((resolve) => {
    const hear = (text: Buffer) => {
      said += String(text)
      const [, url] = /Open (\S+) to try/.exec(said) ?? []
      if (url !== undefined) resolve(url)
    }
    for (const stream of [played.stdout, played.stderr]) stream.on('data', hear)
  })
  const url = await Promise.race([opened, ended.then(() => '')])
  t.not(url, '', said)
  const answers = await Promise.all([url, `${url}/site.js`].map((each) => fetch(each)))
  const [page = '', script = ''] = await Promise.all(answers.map((each) => each.text()))
  t.match(page, '<script defer src="site.js">')
  t.equal(script, readFileSync(join(root, 'build/site/site.js'), 'utf8'))
  // Ctrl-C goes to npx and to the playground.
  if (played.pid !== undefined) process.kill(-played.pid, 'SIGINT')
  await ended
})

t.test('what needs no kernel runs on any system: no Linux, no programs, no rights', (t) => {
  const elsewhere = join(place, 'elsewhere.mjs')
  const darwin = `Object.defineProperty(process, 'platform', { value: 'darwin' })\n`
  writeFileSync(elsewhere, darwin)
  chmodSync(place, 0o755)
  const asNobody = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {}
  const end = (code: number, ...words: string[]) => {
    const options = { cwd: project, env: { PATH: place }, encoding: 'utf8', ...asNobody } as const
    const { status, stdout, stderr } = spawnSync(process.execPath, words, options)
    t.equal(status, code, `${words.join(' ')} ${stderr}`)
    return stdout
  }
  const main = ['--import', elsewhere, join(installed, 'build/lib/main.js')]
  const manifests = ['--manifests', 'web.yaml']
  const rendered = end(0, ...main, 'render', '--proxy-mode', 'nftables', ...manifests)
  t.match(rendered, '10.96.0.10')
  t.match(end(0, ...main, 'explain', 'web', '--proxy-mode', 'ebpf', ...manifests), '10.244.1.11')
  // The commands of every mode, in one process.
  const every = join(place, 'every.mjs')
  writeFileSync(
    every,
    `${darwin}
    const { runCommandLine } = await import('${join(installed, 'build/lib/cli/program.js')}')
    for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'])
      for (const command of [['render'], ['explain', 'web']]) {
        const args = ['--proxy-mode', mode, '--manifests', 'web.yaml']
        const code = await runCommandLine([...command, ...args])
        if (code !== 0) throw new Error(\`\${command[0]} in \${mode} mode: \${code}\`)
        console.log('\\nend of a command')
      }`,
  )
  const told = end(0, every).split('\nend of a command\n')
  t.equal(told.length, 11)
  for (const [index, mode] of ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'].entries()) {
    t.match(told[2 * index], '10.96.0.10', mode)
    t.match(told[2 * index + 1], '10.244.1.11', mode)
  }
  // The command runs, and says that no mode does.
  t.match(end(1, ...main, 'check'), /^iptables +does not run/m)
  t.match(end(0, ...main, '--version'), /^kube-proxy-ts v/)
  t.end()
})

t.test(
  'the package of the same files is the same to the byte, whenever and with whatever umask they were made',
  (t) => {
    const again = join(place, 'again')
    mkdirSync(again)
    run(place, 'tar', '-xzf', packed?.filename ?? '', '-C', again, '--strip-components=1')
    const first = readFileSync(join(place, packed?.filename ?? ''))
    for (const path of paths) {
      utimesSync(join(again, path), 1, 1)
      chmodSync(join(again, path), 0o600)
    }
    pack(again)
    t.ok(first.equals(readFileSync(join(place, packed?.filename ?? ''))))
    t.end()
  },
)

const plain = (page: string) => page.replaceAll(/.\x08/g, '')

t.test(
  'the manual pages tell every command and flag of --help',
  { skip: programSkip('man') },
  (t) => {
    for (const name of ['kube-proxy', 'kube-proxy-ts']) {
      const file = join(installed, 'build/man', `${name}.8`)
      const options = {
        env: { ...env, MANWIDTH: '200', LC_ALL: 'C.UTF-8' },
        encoding: 'utf8',
      } as const
      const { status, stdout, stderr } = spawnSync('man', ['--warnings', '-l', file], options)
      t.equal(status, 0, stderr)
      t.equal(stderr, '', 'no request that troff does not know')
      const page = plain(stdout)
      const help = run(project, join(modules, '.bin', name), '--help')
      const flags = new Set(help.match(/--[a-z][a-z0-9-]+(?= |$)/gm))
      t.ok(flags.size > 60)
      for (const flag of flags) t.match(page, new RegExp(`^ +(?:-\\w, )?${flag}\\b`, 'm'), flag)
      for (const command of ['explain', 'trace', 'completion'])
        t.match(page, new RegExp(`^ +${name} ${command} `, 'm'), command)
      t.equal(/^ +playground$/m.test(page), name === 'kube-proxy-ts')
      t.match(page, /^ +--from <sender>\s+pod, node, outside, or an address/m)
      t.match(page, /^EXIT STATUS$/m)
    }
    const about = readFileSync(join(installed, 'build/man/kubectl-svcproxy.1'), 'utf8')
    for (const command of ['explain', 'flows', 'top', 'trace', 'check', 'diff'])
      t.match(about, new RegExp(`^\\.B kubectl svcproxy ${command}\n`, 'm'), command)
    for (const flag of ['proxy', 'all', 'context']) t.match(about, `\\-\\-${flag}`, flag)
    const manifest: unknown = JSON.parse(readFileSync(join(installed, 'package.json'), 'utf8'))
    const pages = ['kube-proxy.8', 'kube-proxy-ts.8', 'kubectl-svcproxy.1']
    t.match(manifest, { man: pages.map((page) => `build/man/${page}`) })
    t.end()
  },
)

const parts = `
const objects = parseObjects(readFileSync('web.yaml', 'utf8'))
for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables']) {
  if (!renderRules({ mode, objects }).text.includes('10.96.0.10')) throw new Error(mode)
  const { ways } = explainConnection({ mode, objects, to: 'web' })
  console.log(mode, ways.map(({ packet }) => packet.destination).join())
}
console.log(new Batch().append('nat', 'WEB', rule({ jump: 'RETURN' })).toString())
`
const names = [
  '{ explainConnection, parseObjects, renderRules }',
  '{ Batch, rule }',
  '{ readFileSync }',
]
const froms = ['kube-proxy-ts', 'kube-proxy-ts/iptables', 'node:fs']
const esm = names.map((name, index) => `import ${name} from '${froms[index] ?? ''}'\n`).join('')
const cjs = names
  .map((name, index) => `const ${name} = require('${froms[index] ?? ''}')\n`)
  .join('')

t.test('import and require give the same library, and load nothing of the daemon', (t) => {
  // The library must render rules without these packages.
  for (const name of ['pino', 'prom-client', 'koffi', '@kubernetes', 'commander'])
    renameSync(join(modules, name), join(place, name))
  t.teardown(() => {
    for (const name of ['pino', 'prom-client', 'koffi', '@kubernetes', 'commander'])
      renameSync(join(place, name), join(modules, name))
  })
  writeFileSync(join(project, 'main.mjs'), esm + parts)
  writeFileSync(join(project, 'main.cjs'), cjs + parts)
  const output = run(project, process.execPath, 'main.mjs')
  for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables'])
    t.match(output, `${mode} 10.244.1.11,10.244.1.12\n`)
  t.match(output, '-A WEB -j RETURN')
  t.equal(run(project, process.execPath, 'main.cjs'), output)
  t.end()
})

t.test('the example of the README runs and has correct types', (t) => {
  writeFileSync(join(project, 'readme.mjs'), example)
  const output = run(project, process.execPath, 'readme.mjs')
  t.match(output, /add table ip kube-proxy/)
  t.match(output, /^0\.5 sent to 10\.244\.1\.11:8080, which sees an address of this node/m)
  t.end()
})

t.test('the types are correct for tsc --strict, as ES module and CommonJS', (t) => {
  const typed = `
import { explainConnection, parseObjects, renderRules, type ConnectionExplanation } from 'kube-proxy-ts'
import { Batch, Iptables, rule, type Rule } from 'kube-proxy-ts/iptables'
const objects = parseObjects('')
const explanation: ConnectionExplanation = explainConnection({ mode: 'ipvs', objects, to: 'web' })
export const text: string = renderRules({ mode: 'nftables', objects }).text + explanation.text
export const jump: Rule = rule({ jump: 'RETURN' })
export const opened: Promise<Iptables> = Iptables.open({ family: 'IPv4' })
export const batch = new Batch().append('nat', 'WEB', jump)
`
  const wrong = `import { renderRules } from 'kube-proxy-ts'\nrenderRules({ mode: 'ebfp', objects: [] })\n`
  for (const name of ['typed.mts', 'typed.cts', 'typed.ts'])
    writeFileSync(join(project, name), typed)
  writeFileSync(join(project, 'wrong.mts'), wrong)
  const tsc = join(root, 'node_modules/typescript/bin/tsc')
  const options = ['--noEmit', '--strict', '--skipLibCheck', 'false', '--target', 'es2022']
  const check = (...args: string[]) =>
    spawnSync(process.execPath, [tsc, ...options, ...args], { cwd: project, encoding: 'utf8' })
  const modern = check('--module', 'nodenext', 'typed.mts', 'typed.cts', 'wrong.mts').stdout
  t.match(modern, /^wrong\.mts\(2,15\): error TS2322: Type '"ebfp"' is not assignable .*\n$/)
  t.match(check('--module', 'commonjs', 'typed.ts'), { status: 0, stdout: '' })
  t.end()
})
