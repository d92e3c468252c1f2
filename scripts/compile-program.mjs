// Writes what V8 has compiled of the program that scripts/bundle.mjs has put together.
//   node --random-seed=1 scripts/compile-program.mjs FOLDER
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { compiledFile, compileProgram } from '../build/lib/cli/one-file.js'
import { setUpEngine } from '../build/lib/daemon/engine.js'

const [folder] = process.argv.slice(2)
// V8 takes what was compiled with the same flags only.
setUpEngine()
// All functions, not only those that run at once.
setFlagsFromString('--no-lazy')
const script = compileProgram(folder)
setFlagsFromString('--lazy')
writeFileSync(join(folder, compiledFile), script.createCachedData())
