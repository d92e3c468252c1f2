import { readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build, type Plugin } from 'esbuild'
import { readCases } from '../conformance/case-file.js'
import { casesFolder } from '../conformance/cases-folder.js'

/**
 * Without KVM a process of hundreds of files takes ten seconds to start, and one of a single file
 * half of that; in User Mode Linux every page that it touches costs more than a system call. So each
 * program that starts in a guest is built as one file.
 */

const compiled = fileURLToPath(new URL('../../', import.meta.url))
const folder = join(compiled, 'kernels/bundles')

/** The parts of tier uml in the order in which they run. */
export const ofUml = [
  'trace',
  'playground',
  // These share the machine's first namespace; the others make worlds or a namespace.
  ...(['ipvs-mode', 'packets', 'others', 'switching', 'one-port'] as const),
  'takeover',
  'interrupted',
  'confined',
  'flows',
] as const

const programs = [
  'lib/cli/main.js',
  'test/conformance/main.js',
  'test/conformance/subject-main.js',
  'test/kernels/inside/modes.js',
  ...ofUml.map((name) => `test/uml/inside/${name}.js` as const),
  'lib/lab/world/agent-worker.js',
  'lib/sources/health/worker.js',
] as const
export type GuestProgram = (typeof programs)[number]

export const bundleOf = (program: GuestProgram) => join(folder, program)

export async function writeBundles(): Promise<void> {
  await build({
    entryPoints: programs.map((program) => join(compiled, program)),
    ...{ outbase: compiled, outdir: folder, plugins: [cases, places] },
    ...{ bundle: true, platform: 'node', format: 'esm', packages: 'external', logLevel: 'error' },
    // What fails is told with its place in the source.
    ...{ minifyWhitespace: true, sourcemap: 'linked' },
    // As an ES module: what Node takes by itself calls require().
    alias: { yaml: fileURLToPath(new URL('../browser/index.js', import.meta.resolve('yaml'))) },
  })
}

/** Parses all cases here, once, because that takes ten times as long as the start of Node. */
const cases: Plugin = {
  name: 'cases',
  setup: (building) => {
    building.onLoad({ filter: /\/test\/conformance\/case-file\.js$/ }, () => ({
      contents: parsedCases(),
      loader: 'js',
    }))
  },
}

/** The text of a module that contains the parsed cases and replaces the one that reads them. */
export function parsedCases(): string {
  const text = JSON.stringify(readCases(casesFolder))
  return `export const readCases = () => JSON.parse(${JSON.stringify(text)})`
}

/**
 * Keeps the paths of files beside a module. The path of another program becomes that of its bundle.
 */
const places: Plugin = {
  name: 'places',
  setup: (building) => {
    building.onLoad({ filter: /\.js$/ }, ({ path }) => ({
      contents: withPlaces(readFileSync(path, 'utf8'), path),
      loader: 'js',
    }))
  },
}

/** The text of a module that finds the files beside it wherever it runs. */
export function withPlaces(text: string, path: string): string {
  return text
    .replaceAll(/new URL\('([^']*)', import\.meta\.url\)/g, (_, name: string) => {
      const file = join(dirname(path), name)
      const program = programs.find((each) => each === relative(compiled, file))
      const place = program === undefined ? file : bundleOf(program)
      return `new URL(${JSON.stringify(pathToFileURL(place).href)})`
    })
    .replaceAll('import.meta.url', JSON.stringify(pathToFileURL(path).href))
}
