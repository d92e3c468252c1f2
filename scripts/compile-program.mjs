// Writes the code that V8 compiles from the program of scripts/bundle.mjs.
//   node --random-seed=1 scripts/compile-program.mjs FOLDER
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { compiledFile, compileProgram } from '../build/lib/cli/one-file.js'
import { setUpEngine } from '../build/lib/engine.js'

const [folder] = process.argv.slice(2)
// V8 accepts only code that was compiled with the same flags.
setUpEngine()
// V8 compiles all functions, not only those that run at once.
setFlagsFromString('--no-lazy')
const script = compileProgram(folder)
setFlagsFromString('--lazy')
writeFileSync(join(folder, compiledFile), script.createCachedData())
