#!/usr/bin/env node
/** What a node runs: the proxy and the commands that look at it. */
import { runCommandLine } from './command-line.js'

const exitCode = await runCommandLine(process.argv.slice(2))
// A worker or a timer that somebody forgot must not keep a finished command alive.
process.exit(exitCode)
