#!/usr/bin/env node
/** Everything in this package: what a node runs, and the laboratory. */
import { setUpEngine } from './engine.js'

setUpEngine()
const { runCommandLine } = await import('./cli/program.js')
const exitCode = await runCommandLine(process.argv.slice(2), {
  playground: async () => (await import('./lab/cli/playground.js')).addPlaygroundCommand,
  apiserver: async () => (await import('./lab/cli/apiserver.js')).addApiserverCommand,
})
// A worker or a timer that is still active must not keep a finished command alive.
process.exit(exitCode)
