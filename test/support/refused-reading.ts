import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'

/**
 * Files that match cannot be read, as without descriptors, until the returned function is called or
 * the test ends.
 */
export function refuseReading(
  t: { teardown(act: () => void): unknown },
  matches: (file: string) => boolean = () => true,
): () => void {
  const { readFile } = fs.promises
  const use = (read: unknown) => {
    Object.assign(fs.promises, { readFile: read })
    syncBuiltinESMExports()
  }
  const allow = () => use(readFile)
  const refused = Object.assign(new Error('EMFILE: too many open files'), { code: 'EMFILE' })
  t.teardown(allow)
  use((file: string) => (matches(file) ? Promise.reject(refused) : readFile(file, 'utf8')))
  return allow
}
