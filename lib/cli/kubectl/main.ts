#!/usr/bin/env node
/** The program `kubectl-svcproxy`, which kubectl runs as `kubectl svcproxy`. */
import { runPlugin } from './program.js'

// No exit at once: what was printed into a pipe must be read first.
void runPlugin(process.argv.slice(2)).then((code) => (process.exitCode = code))
