/** The lint rules of scripts/rooms.mjs can fail. */
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

interface House {
  readonly wrongArrow: (from: string, to: string) => string | undefined
  readonly importsOf: (lib: string) => ReadonlyMap<string, readonly string[]>
  readonly withRooms: (text: string) => string
}

const root = fileURLToPath(new URL('../../..', import.meta.url))
const rooms = join(root, 'scripts/rooms.mjs')
const { wrongArrow, importsOf, withRooms } = (await import(rooms)) as House

t.test('a forbidden import is reported with the allowed ones', (t) => {
  t.match(wrongArrow('state/tracker.ts', 'kernel/files.ts'), /^state\/ may import /)
  t.match(wrongArrow('kernel/iptables.ts', 'modes/mode.ts'), /state\/ip\.ts/)
  t.equal(wrongArrow('modes/mode.ts', 'state/names.ts'), undefined)
  t.equal(wrongArrow('kernel/netlink/socket.ts', 'state/ip.ts'), undefined, 'a single file')
  t.match(wrongArrow('kernel/netlink/socket.ts', 'state/names.ts'), /may import/, 'no other')
  t.equal(wrongArrow('state/tracker.ts', 'errors.ts'), undefined, 'what everybody may')
  t.equal(wrongArrow('state/tracker.ts', 'state/ip.ts'), undefined, 'its own room')
  t.end()
})

t.test('every reader of YAML counts the levels first', (t) => {
  const lib = join(root, 'lib')
  const readers = [...importsOf(lib).keys()]
    .map((file) => ({ file, text: readFileSync(join(lib, file), 'utf8') }))
    .filter(({ text }) => /import \{[^}]*\bparse\w*[^}]*\} from 'yaml'/.test(text))
  t.ok(readers.length >= 6)
  for (const { file, text } of readers) t.match(text, /tooDeep\(/, file)
  t.end()
})

t.test('nothing that runs on a node imports the laboratory', (t) => {
  const product = [...importsOf(join(root, 'lib')).keys()]
    .map((file) => file.split('/')[0] ?? '')
    .filter((room) => room !== 'lab' && !room.endsWith('.ts'))
  t.ok(product.length > 100)
  for (const room of new Set(product)) {
    t.match(wrongArrow(`${room}/any.ts`, 'lab/world/world.ts'), /may import/, room)
  }
  t.end()
})

t.test('modes do not import each other', (t) => {
  t.match(wrongArrow('modes/ipvs/apply.ts', 'modes/iptables/plan.ts'), /never import each other/)
  t.equal(wrongArrow('modes/ipvs/apply.ts', 'modes/ipvs/plan.ts'), undefined)
  t.equal(wrongArrow('modes/ipvs/apply.ts', 'modes/mode.ts'), undefined)
  t.match(wrongArrow('modes/ipvs/plan.ts', 'kernel/sockets.ts'), /are pure/)
  t.end()
})

interface Message {
  readonly filename: string
  readonly message: string
}

/** The messages of the linter about files below lib/, by file. */
function lint(folder: string, files: Readonly<Record<string, string>>): Record<string, string[]> {
  const lib = join(folder, 'lib')
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(lib, name)), { recursive: true })
    writeFileSync(join(lib, name), text)
  }
  writeFileSync(
    join(folder, 'plugin.mjs'),
    `import { housePlugin } from '${rooms}'\nexport default housePlugin('${lib}')\n`,
  )
  const configuration = {
    plugins: [],
    categories: { correctness: 'off' },
    jsPlugins: ['./plugin.mjs'],
    rules: { 'house/rooms': 'error', 'house/circles': 'error', 'house/atomics': 'error' },
  }
  const path = join(folder, 'oxlint.json')
  writeFileSync(path, JSON.stringify(configuration))
  // Named files are read even where Git ignores the folder.
  const paths = Object.keys(files).map((name) => join('lib', name))
  const oxlint = join(root, 'node_modules/.bin/oxlint')
  const { stdout } = spawnSync(oxlint, ['-c', path, '-f', 'json', ...paths], {
    cwd: folder,
    encoding: 'utf8',
  })
  const { diagnostics } = JSON.parse(stdout) as { readonly diagnostics: readonly Message[] }
  return Object.fromEntries(
    Object.keys(files).map((name) => [
      name,
      diagnostics
        .filter(({ filename }) => filename === join('lib', name))
        .map(({ message }) => message),
    ]),
  )
}

t.test('the linter refuses every form of a forbidden import', (t) => {
  const wrong = "'../kernel/files.js'"
  const said = lint(t.testdir(), {
    'state/static.ts': `import { x } from ${wrong}\nconsole.log(x)`,
    'state/type.ts': `import type { X } from ${wrong}\nexport type Y = X`,
    'state/dynamic.ts': `export const x = () => import(${wrong})`,
    'state/again.ts': `export { x } from ${wrong}`,
    'state/all.ts': `export * from ${wrong}`,
    'state/right.ts': "import { x } from './ip.js'\nexport { y } from '../errors.js'\nx()",
    'sync/product.ts': "export const world = () => import('../lab/world/world.js')",
  })
  const { 'state/right.ts': right, ...others } = said
  t.same(right, [])
  for (const [file, messages] of Object.entries(others)) {
    t.equal(messages.length, 1, file)
    t.match(messages[0], new RegExp(`^${file} imports .*may import`))
  }
  t.end()
})

t.test('pure rooms use no clock, no disk and no package', (t) => {
  const impure = "import { readFileSync } from 'node:fs'\nreadFileSync('x')"
  const said = lint(t.testdir(), {
    'modes/ipvs/plan.ts': impure,
    'modes/ipvs/render.ts': "export * from 'koffi'",
    'modes/ipvs/apply.ts': impure,
    'state/tracker.ts': impure,
    'state/hash.ts': "import { createHash } from 'node:crypto'\ncreateHash('sha256')",
  })
  const pure = ['modes/ipvs/plan.ts', 'modes/ipvs/render.ts', 'state/tracker.ts', 'state/hash.ts']
  for (const file of pure) {
    t.match(said[file], [/is pure/], file)
  }
  t.same(said['modes/ipvs/apply.ts'], [])
  t.end()
})

t.test('a circle of imports is reported with its path, also for types', (t) => {
  const said = lint(t.testdir(), {
    'state/a.ts': "import { b } from './b.js'\nb()",
    'state/b.ts': "import type { C } from './deep/c.js'\nexport type B = C",
    'state/deep/c.ts': "export const a = () => import('../a.js')",
    'state/d.ts': "import { a } from './a.js'\na()",
  })
  t.same(said['state/a.ts'], [
    'imports in a circle: state/a.ts → state/b.ts → state/deep/c.ts → state/a.ts',
  ])
  t.match(said['state/deep/c.ts'], [/in a circle/])
  t.same(said['state/d.ts'], [], 'who only leads into it is no part of it')
  t.end()
})

t.test('only Atomics may write to memory that programs of the kernel read', (t) => {
  const said = lint(t.testdir(), {
    'kernel/method.ts': 'export const f = (a: Uint8Array) => a.set([1])',
    'kernel/assigned.ts': 'export const f = (a: Uint8Array) => { a[0] = 1 }',
    'kernel/counted.ts': 'export const f = (a: Uint8Array) => { a[0]++ }',
    'kernel/view.ts': 'export const f = (a: ArrayBuffer) => new DataView(a)',
    'kernel/buffer.ts': 'export const f = (a: ArrayBuffer) => Buffer.from(a)',
    'kernel/right.ts': 'export const f = (a: Int32Array) => Atomics.store(a, 0, a[1] ?? 0)',
  })
  const { 'kernel/right.ts': right, ...others } = said
  t.same(right, [])
  for (const [file, messages] of Object.entries(others)) t.match(messages, [/only Atomics/], file)
  t.end()
})

t.test('docs/architecture.md shows the table of rooms', (t) => {
  const text = readFileSync(join(root, 'docs/architecture.md'), 'utf8')
  t.equal(withRooms(text), text, 'npm run docs writes it')
  t.throws(() => withRooms('no table'), { message: /no place for the table/ })
  t.end()
})
