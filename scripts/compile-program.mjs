// Writes the code that V8 compiles from the program of scripts/bundle.mjs.
//   node --random-seed=1 scripts/compile-program.mjs FOLDER
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { compiledFile, compileProgram } from '../build/lib/cli/one-file.js'
import { setUpEngine } from '../build/lib/engine.js'

const [folder] = process.argv.slice(2)
// V8 accepts only code that was compiled with the same flags.
setUpEngine()
// It has what runs at once. With all functions it is nine times as long, each command takes a
// quarter more of a processor and each process 2.5 MB more, and a proxy does not start sooner.
writeFileSync(join(folder, compiledFile), compileProgram(folder).createCachedData())
