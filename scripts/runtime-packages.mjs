// Prints the folders of the packages that run: those of package-lock.json that are no tools of
// development and are installed here (of koffi's libraries, the one for this machine).
import { existsSync, readFileSync } from 'node:fs'

const lock = JSON.parse(readFileSync('package-lock.json', 'utf8'))
for (const [folder, entry] of Object.entries(lock.packages)) {
  // Only types: the lock counts them as needed by a package that runs.
  const isTypes = /(^|\/)node_modules\/(@types\/|undici-types$)/.test(folder)
  if (folder === '' || entry.dev || entry.devOptional || isTypes || !existsSync(folder)) continue
  // What lies inside another package comes with it.
  if (folder.lastIndexOf('node_modules/') > 0) continue
  console.log(folder)
}
