// Writes the plug-in of kubectl as one file that needs nothing but Node.js: the file that is named,
// or build/packages/kubectl-svcproxy. A second file beside it completes its commands in a shell.
// Needs a build.
import { chmodSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { versionText } from '../build/lib/cli/process.js'

const place = (path) => fileURLToPath(new URL(path, import.meta.url))
const plugin = process.argv[2] ?? place('../build/packages/kubectl-svcproxy')

/**
 * The plug-in asks the API server by kubectl only. The library that a node has for this would be
 * more than half of each file, and a fifth of what the start of a command costs.
 */
const withoutLibrary = {
  name: 'without library',
  setup: ({ onLoad }) =>
    onLoad({ filter: /\/sources\/library-access\.js$/ }, () => ({ contents: '' })),
}

const programs = {
  [plugin]: `import { runPlugin } from './program.js'
    void runPlugin(process.argv.slice(2), ${JSON.stringify(versionText())})
      .then((code) => (process.exitCode = code))`,
  [join(dirname(plugin), 'kubectl_complete-svcproxy')]:
    `import { runCompletion } from './complete.js'
    void runCompletion(process.argv.slice(2))`,
}
for (const [outfile, contents] of Object.entries(programs)) {
  await build({
    stdin: { contents, resolveDir: place('../build/lib/cli/kubectl') },
    outfile,
    bundle: true,
    platform: 'node',
    target: 'node20',
    // Node takes a file without an ending for CommonJS, where import.meta does not exist. Below a
    // package.json that says so, such as ours, it is a module, where require does not exist.
    format: 'cjs',
    banner: {
      js: `#!/usr/bin/env node
var require = process.getBuiltinModule('node:module').createRequire(process.argv[1])
var fileUrl = require('node:url').pathToFileURL(process.argv[1]).href`,
    },
    define: { 'import.meta.url': 'fileUrl' },
    // This library is for calls of the kernel, and the plug-in makes none.
    external: ['koffi'],
    plugins: [withoutLibrary],
    logLevel: 'warning',
  })
  chmodSync(outfile, 0o755)
}
