#!/usr/bin/env node
/** The program on a node: the proxy, and the commands about it. */
import { setUpEngine } from '../engine.js'

setUpEngine()
const { runCommandLine } = await import('./program.js')
const exitCode = await runCommandLine(process.argv.slice(2))
// A worker or a timer that is still active must not keep a finished command alive.
process.exit(exitCode)
