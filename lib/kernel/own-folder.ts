import { existsSync, mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { codeOf } from '../errors.js'

/**
 * Makes a folder and its parents, for the user of this process alone. Node's own way to make the
 * parents calls a read-only file system a missing folder, and never ends below /proc.
 */
export function makeOwnFolder(path: string): void {
  if (existsSync(path)) return
  makeOwnFolder(dirname(path))
  try {
    mkdirSync(path, { mode: 0o700 })
  } catch (error) {
    // Another process was faster.
    if (codeOf(error) !== 'EEXIST') throw error
  }
}
