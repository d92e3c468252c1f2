#!/usr/bin/env node
/** The program `kubectl-svcproxy`, which kubectl runs as `kubectl svcproxy`. */
import { runPlugin } from './program.js'

// The process does not exit at once: a reader may not have read all output from a pipe yet.
void runPlugin(process.argv.slice(2)).then((code) => (process.exitCode = code))
