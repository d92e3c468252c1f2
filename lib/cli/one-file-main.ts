#!/usr/bin/env node
/** The program of main.ts as one file for nodes, which scripts/bundle.mjs makes. */
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { setUpEngine } from '../engine.js'
import { loadProgram } from './one-file.js'

setUpEngine()
const { runCommandLine } = loadProgram(dirname(fileURLToPath(import.meta.url)))
const exitCode = await runCommandLine(process.argv.slice(2))
// A worker or a timer that is still active must not keep a finished command alive.
process.exit(exitCode)
