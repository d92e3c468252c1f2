// Builds the playground as a static folder, at the end of `npm run build`: the page, and a cluster
// that is simulated in the browser. It needs no server and opens from a file.
import { build } from 'esbuild'
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const root = fileURLToPath(new URL('..', import.meta.url))
const { values } = parseArgs({
  options: { out: { type: 'string', default: join(root, 'build/site') } },
})
const lib = join(root, 'build/lib')
const browser = join(lib, 'page/browser')

// Only this script knows both the page and the cluster that it shows.
const entry = `
import { localLink } from './page/browser/local-link.js'
import { openPage } from './page/browser/page.js'
import { parsePageCommand } from './page/commands.js'
import { simulatedPlayground } from './lab/simulation/cluster.js'
openPage(localLink(simulatedPlayground(new AbortController().signal), parsePageCommand))`

rmSync(values.out, { recursive: true, force: true })
mkdirSync(values.out, { recursive: true })
const { metafile } = await build({
  stdin: { contents: entry, resolveDir: lib, sourcefile: 'site.js' },
  outfile: join(values.out, 'site.js'),
  bundle: true,
  minify: true,
  // A page that was opened from a file may not load modules.
  format: 'iife',
  platform: 'browser',
  target: 'es2022',
  // The bundle keeps no module of Node.js, because it uses nothing that imports one.
  external: ['node:*'],
  metafile: true,
  logLevel: 'warning',
})
const ofNode = Object.values(metafile.outputs).flatMap(({ imports }) => imports)
if (ofNode.length > 0) {
  const names = ofNode.map(({ path }) => path).join(', ')
  throw new Error(`build the site: it uses ${names}, which no browser has`)
}
const page = readFileSync(join(browser, 'index.html'), 'utf8')
const script = '<script type="module" src="main.js"></script>'
if (!page.includes(script)) throw new Error('build the site: index.html has no script to replace')
const closed = `<meta http-equiv="content-security-policy" content="connect-src 'none'; form-action 'none'; base-uri 'none'" />`
writeFileSync(
  join(values.out, 'index.html'),
  page.replace(script, `${closed}\n    <script defer src="site.js"></script>`),
)
cpSync(join(browser, 'style.css'), join(values.out, 'style.css'))
