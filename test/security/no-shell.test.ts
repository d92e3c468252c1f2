import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const root = fileURLToPath(new URL('../../..', import.meta.url))

const sources = readdirSync(join(root, 'lib'), { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts') && !file.endsWith('.d.ts'))
  .map((file) => ({ file: join('lib', file), text: readFileSync(join(root, 'lib', file), 'utf8') }))

/**
 * The only shell. It removes the namespaces of a test world or a playground when their owner is
 * gone. Its text is constant, and the names are arguments.
 */
const reaper = 'lib/lab/world/namespaces.ts'

/** This file compiles only the program itself, which is beside it in the image. */
const loader = 'lib/cli/one-file.ts'

/** What must not be in the code of any file, but for one that may have it. */
const forbidden: readonly { readonly pattern: RegExp; readonly allowed?: string }[] = [
  { pattern: /\bshell:(?!\s*false)/ },
  { pattern: /(?<!\.)\bexec(Sync)?\(\s*[`'"]/ },
  { pattern: /import \{[^}]*\bexec(Sync)?\b[^}]*\} from 'node:child_process'/ },
  { pattern: /spawn(Sync)?\(\s*['"`](\/bin\/)?(ba|da)?sh['"`]/, allowed: reaper },
  { pattern: /\beval\(|new Function\(/ },
  { pattern: /node:vm/, allowed: loader },
]

t.test('nothing is ever run through a shell', (t) => {
  t.ok(sources.length > 200)
  const found = sources.flatMap(({ file, text }) => {
    const code = text.replace(/\/\*[^]*?\*\/|\/\/.*$/gm, '')
    const here = forbidden.filter(({ pattern, allowed }) => file !== allowed && pattern.test(code))
    return here.map(({ pattern }) => `${file}: ${String(pattern)}`)
  })
  t.same(found, [])
  t.end()
})

const startsProcesses = (text: string) => /'node:child_process'|\bposix_spawnp?\(/.test(text)

t.test('processes are started in few places, by a list of arguments', (t) => {
  const starting = sources.filter(({ text }) => startsProcesses(text))
  const known = [
    'lib/kernel/iptables/start.ts',
    'lib/kernel/posix-spawn.ts',
    'lib/kernel/nftables/monitor.ts',
    // What the operator's kubeconfig names, and nothing of an object.
    'lib/sources/exec-plugin.ts',
    reaper,
    'lib/lab/world/world.ts',
    // `kube-proxy trace` and a playground without root start constant programs, without object
    // texts.
    'lib/inspect/trace/trace-rule.ts',
    'lib/inspect/trace/legacy-trace.ts',
    'lib/lab/playground/loopback-test-bed.ts',
    'lib/lab/playground/user-namespace.ts',
  ]
  t.same(
    starting.map(({ file }) => file).filter((file) => !known.includes(file)),
    [],
  )
  t.end()
})

t.test('the program of a node contains no laboratory and no shell', (t) => {
  const reached = new Set<string>()
  const visit = (file: string) => {
    if (reached.has(file)) return
    reached.add(file)
    const text = readFileSync(join(root, file), 'utf8')
    for (const [, target = ''] of text.matchAll(/(?:from|import\()\s*'(\.[^']+)\.js'/g)) {
      visit(`${normalize(join(dirname(file), target))}.ts`)
    }
  }
  visit('lib/cli/main.ts')
  t.ok(reached.size > 100, 'its imports are followed')
  t.same(
    [...reached].filter((file) => file.startsWith('lib/lab/')),
    [],
  )
  const starting = [...reached].filter((file) =>
    startsProcesses(readFileSync(join(root, file), 'utf8')),
  )
  t.same(starting.sort(), [
    // `kube-proxy trace`.
    'lib/inspect/trace/legacy-trace.ts',
    'lib/inspect/trace/trace-rule.ts',
    'lib/kernel/iptables/start.ts',
    // `nft monitor`, if netlink cannot be used.
    'lib/kernel/nftables/monitor.ts',
    'lib/kernel/posix-spawn.ts',
    'lib/sources/exec-plugin.ts',
  ])
  t.end()
})

t.test('pages are built of elements, never of markup text', (t) => {
  const page = readdirSync(join(root, 'lib/page/browser')).filter((file) => file.endsWith('.ts'))
  t.ok(page.length > 0)
  for (const file of page) {
    const text = readFileSync(join(root, 'lib/page/browser', file), 'utf8')
    t.notMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc/, file)
  }
  t.end()
})
