import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Script } from 'node:vm'
import { ifPossible } from '../errors.js'
import type { runCommandLine } from './program.js'

/**
 * On a node the program is one file, and a second file has V8's compiled form of it. Reading and
 * compiling hundreds of modules would be a third of the cost of a start. scripts/bundle.mjs writes
 * both. The second is named after its Node: V8 takes what it compiled in Node 20.20.0 also in
 * 20.20.2, where a security fix changed the form, and the process crashes (nodejs/node#62781).
 */
export const programFile = 'program.cjs'
export const compiledFile = `program.${process.version}.compiled`

type Load = (exports: object, require: NodeJS.Require, module: object, file: string) => void

/** The compiled form is used if this V8 has the same version and flags; otherwise it is ignored. */
export function compileProgram(folder: string, compiled?: Buffer): Script {
  // The file has ASCII only, and V8 reads such text faster. Its whole text is one function.
  const text = readFileSync(join(folder, programFile), 'latin1')
  // The name has no folder, because it becomes part of the compiled form.
  const options = {
    filename: programFile,
    ...(compiled === undefined ? {} : { cachedData: compiled }),
  }
  return new Script(text, options)
}

interface Program {
  readonly runCommandLine: typeof runCommandLine
}

export function loadProgram(folder: string): Program {
  // Without the second file the start only takes longer.
  const compiled = ifPossible(() => readFileSync(join(folder, compiledFile)))
  const script = compileProgram(folder, compiled)
  const filename = join(folder, programFile)
  const module = { exports: {} as Program }
  const load = script.runInThisContext() as Load
  load(module.exports, createRequire(pathToFileURL(filename)), module, filename)
  return module.exports
}
