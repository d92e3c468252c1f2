import { readFileSync } from 'node:fs'
import { systemHere } from '../platform.js'

/** The limit where none can be read. On Windows only memory limits the number of sockets. */
const unknownLimit = systemHere() === 'win32' ? 2 ** 20 : 1024

/** How many files this process may open. Node raises its soft limit to the hard one at its start. */
export function openFilesLimit(limits = readLimits()): number {
  const soft = /^Max open files\s+(\d+|unlimited)/m.exec(limits)?.[1]
  return soft === 'unlimited' ? 2 ** 30 : Number(soft ?? unknownLimit)
}

/** How many connections a server that is not the purpose of this process may hold. */
export function clientLimit(most: number): number {
  return Math.max(Math.min(most, Math.floor(openFilesLimit() / 16)), 4)
}

function readLimits(): string {
  try {
    return readFileSync('/proc/self/limits', 'utf8')
  } catch {
    return ''
  }
}
