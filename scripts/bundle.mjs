// Puts what a node runs into a folder: the program in one file, the code that V8 compiles from it,
// and a file for each of its threads. The same build gives the same bytes.
//   node scripts/bundle.mjs FOLDER     needs a build; of the packages only koffi stays outside
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const [to] = process.argv.slice(2)
if (to === undefined) {
  console.error('usage: node scripts/bundle.mjs FOLDER')
  process.exit(2)
}
const root = fileURLToPath(new URL('..', import.meta.url))
const lib = join(root, 'build/lib')
const [home, newHome] = [join(lib, 'cli'), resolve(to, 'build/lib/cli')]

/** Files that run as a thread or a process, and their names in the folder of the program. */
const threads = {
  'observe/flows/flow-worker.js': 'flow-worker',
  'sources/health/worker.js': 'health-worker',
  'sources/manifest-worker.js': 'manifest-worker',
  'modes/userspace/listeners/worker.js': 'userspace-worker',
  'inspect/trace/legacy-cleaner.js': 'legacy-cleaner',
}

/** A module that looks for a file beside itself finds it from the folder of the program. */
const places = {
  name: 'places',
  setup: (building) =>
    building.onLoad({ filter: /\/build\/lib\/.*\.js$/ }, ({ path }) => ({
      contents: readFileSync(path, 'utf8').replaceAll(
        /new URL\((['`])([^'`]+)\1, import\.meta\.url\)/g,
        (_, quote, name) =>
          `new URL(${quote}${placeOf(join(dirname(path), name))}${quote}, import.meta.url)`,
      ),
      loader: 'js',
    })),
}

function placeOf(file) {
  const thread = threads[relative(lib, file)]
  return thread === undefined ? relative(home, file) : `./${thread}.js`
}

/** Half of all code is a library that few API servers need, so it stays in a file of its own. */
const library = {
  name: 'library',
  setup: (building) =>
    building.onResolve({ filter: /\/library-access\.js$/ }, ({ kind }) =>
      kind === 'entry-point' ? undefined : { path: './library-access.cjs', external: true },
    ),
}

/**
 * An import of a package that stays outside comes before everything else in its file. A thread can
 * work without koffi, so koffi loads when the first module that needs it does.
 */
const lateKoffi = {
  name: 'late-koffi',
  setup: (building) => {
    building.onResolve({ filter: /^koffi$/ }, ({ kind, path }) =>
      kind === 'import-statement' ? { path, namespace: 'late' } : undefined,
    )
    building.onLoad({ filter: /./, namespace: 'late' }, () => ({
      contents: `import { createRequire } from 'node:module'
        export default createRequire(import.meta.url)('koffi')`,
    }))
  },
}

const common = {
  ...{ bundle: true, platform: 'node', target: 'node20', external: ['koffi'], metafile: true },
  ...{ plugins: [places], logLevel: 'warning', outdir: newHome, absWorkingDir: root },
}
const built = await Promise.all([
  build({
    ...common,
    entryPoints: {
      program: join(home, 'program.js'),
      'library-access': join(lib, 'sources/library-access.js'),
    },
    plugins: [places, library],
    outExtension: { '.js': '.cjs' },
    format: 'cjs',
    // A single script cannot load ES modules, so each import() becomes a require().
    supported: { 'dynamic-import': false },
    banner: { js: "const fileUrl = require('node:url').pathToFileURL(__filename).href" },
    define: { 'import.meta.url': 'fileUrl' },
  }),
  build({
    ...common,
    entryPoints: {
      main: join(home, 'one-file-main.js'),
      ...Object.fromEntries(Object.entries(threads).map(([file, out]) => [out, join(lib, file)])),
    },
    plugins: [places, lateKoffi],
    // As an ES module: what Node takes by itself calls require().
    alias: { yaml: join(root, 'node_modules/yaml/browser/index.js') },
    format: 'esm',
  }),
])
const inputs = built.flatMap(({ metafile }) => Object.keys(metafile.inputs))
const strangers = inputs.filter((input) => input.startsWith('build/lib/lab/'))
if (strangers.length > 0)
  throw new Error(`a node would run the laboratory: ${strangers.join(', ')}`)

// The loader reads ASCII, and a function. Here is where it is put together, because V8 would copy it.
const program = readFileSync(join(newHome, 'program.cjs'), 'utf8')
const [strange] = /.*[^\0-\x7f].*/.exec(program) ?? []
if (strange !== undefined) throw new Error(`the program has a line that is not ASCII: ${strange}`)
const head = '(function (exports, require, module, __filename) {'
writeFileSync(join(newHome, 'program.cjs'), `${head}${program}\n})`)

// What another Node compiled of an earlier build would be taken if the length is the same.
for (const file of readdirSync(newHome)) if (file.endsWith('.compiled')) rmSync(join(newHome, file))
// V8 writes the seed of its tables into the file, and would take another seed in each process.
const compiling = spawnSync(
  process.execPath,
  ['--random-seed=1', join(root, 'scripts/compile-program.mjs'), newHome],
  { stdio: 'inherit' },
)
if (compiling.status !== 0) throw new Error('the program was not compiled')

for (const file of ['package.json', 'LICENSE']) cpSync(join(root, file), join(to, file))
const browser = join(to, 'build/lib/page/browser')
mkdirSync(browser, { recursive: true })
cpSync(join(lib, 'page/browser'), browser, {
  recursive: true,
  filter: (file) => !/\.(d\.ts|map)$/.test(file),
})
