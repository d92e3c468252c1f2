import { spawnSync } from 'node:child_process'
import { rmSync, writeFileSync } from 'node:fs'
import { build } from 'esbuild'
import { flagsToOptimizeLater } from '../build/lib/engine.js'

const folder = 'build/node_modules/tap'

/**
 * Puts the test library into one file, with what V8 has compiled of it, where tests find it before
 * that of the package. To read its 300 files takes each file of tests 0.15 s of a processor, and
 * to compile them 0.1 s.
 */
export async function putTapTogether() {
  rmSync(folder, { recursive: true, force: true })
  const lines = [
    "export { default } from 'tap'",
    // Otherwise reports would show its own lines, and not those of tests.
    "import { addIgnoredPackage } from '@tapjs/stack'",
    "addIgnoredPackage('tap')",
  ]
  await build({
    stdin: { contents: lines.join('\n'), resolveDir: '.' },
    outfile: `${folder}/library.cjs`,
    bundle: true,
    minifySyntax: true,
    minifyWhitespace: true,
    platform: 'node',
    format: 'cjs',
    plugins: [withoutReact],
    define: { 'import.meta.url': 'place' },
    banner: { js: '(function (module, require, place) {' },
    footer: { js: '})' },
  })
  writeFileSync(`${folder}/index.mjs`, loader)
  writeFileSync(`${folder}/package.json`, '{ "exports": "./index.mjs" }')
  const code = `import t, { keepCompiled } from './${folder}/index.mjs'
    process.on('exit', keepCompiled)
    t.test('what most tests do', async (t) => {
      t.teardown(() => undefined)
      t.equal(1, 1)
      t.same({ a: [1] }, { a: [1] })
      t.match({ a: 'b' }, { a: /b/ })
    })`
  // V8 takes only what another process with the same flags has compiled.
  const args = [...flagsToOptimizeLater, '--input-type=module', '--eval', code]
  spawnSync(process.execPath, args)
}

/** The library reads React and three more packages to print elements of React; no test has any. */
const withoutReact = {
  name: 'without React',
  setup: ({ onLoad }) =>
    onLoad({ filter: /tcompare.dist.esm.react-element-to-jsx-string[.]js$/ }, () => ({
      contents: 'export default String',
    })),
}

const loader = `import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { constants, Script } from 'node:vm'

const filename = fileURLToPath(new URL('library.cjs', import.meta.url))
const compiled = filename.replace('.cjs', '.compiled')
// It is ASCII.
const library = new Script(readFileSync(filename, 'latin1'), {
  filename,
  cachedData: existsSync(compiled) ? readFileSync(compiled) : undefined,
  importModuleDynamically: constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
})
const module = { exports: {} }
library.runInThisContext()(module, createRequire(import.meta.url), import.meta.url)

export default module.exports.default
export function keepCompiled() {
  writeFileSync(compiled + '.new', library.createCachedData())
  renameSync(compiled + '.new', compiled)
}
`
