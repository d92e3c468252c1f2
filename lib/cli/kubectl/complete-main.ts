#!/usr/bin/env node
/** The program `kubectl_complete-svcproxy`: kubectl asks it what to offer after `kubectl svcproxy`. */
import { runCompletion } from './complete.js'

void runCompletion(process.argv.slice(2))
