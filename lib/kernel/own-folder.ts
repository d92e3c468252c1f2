import { existsSync, mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { codeOf } from '../errors.js'

/**
 * Makes a folder and its parents, for the user of this process alone. Asked for parents, too, Node
 * says of a read-only file system that there is no such folder. Without them it tells the truth.
 */
export function makeOwnFolder(path: string): void {
  const mode = 0o700
  try {
    mkdirSync(path, { recursive: true, mode })
  } catch (error) {
    if (codeOf(error) !== 'ENOENT') throw error
    const parent = dirname(path)
    if (!existsSync(parent)) makeOwnFolder(parent)
    mkdirSync(path, { mode })
  }
}
