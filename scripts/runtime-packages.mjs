// Prints the folders of the packages that run: those of package-lock.json that are installed here
// and are not tools of development. Of koffi's libraries it prints the one for this machine.
import { existsSync, readFileSync } from 'node:fs'

const lock = JSON.parse(readFileSync('package-lock.json', 'utf8'))
for (const [folder, entry] of Object.entries(lock.packages)) {
  // The lock counts packages of types as needed, but they do not run.
  const isTypes = /(^|\/)node_modules\/(@types\/|undici-types$)/.test(folder)
  if (folder === '' || entry.dev || entry.devOptional || isTypes || !existsSync(folder)) continue
  // A package inside another one comes with it.
  if (folder.lastIndexOf('node_modules/') > 0) continue
  console.log(folder)
}
