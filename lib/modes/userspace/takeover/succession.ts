import { closeSync, fstatSync, mkdirSync, openSync, rmSync, statSync } from 'node:fs'
import { KernelError } from '../../../errors.js'
import type { Libc } from '../../../kernel/sockets/libc.js'
import { takeoverPath } from './protocol.js'

const exclusiveNonBlocking = 2 | 4

/** Held by the one process that starts, until it waits for a successor. */
export interface Succession {
  release(): void
}

/**
 * Only one process may start at a time: one that takes over meanwhile would find nobody to ask,
 * start like the first process on a node, and both would stay. Throws a KernelError `busy` for
 * that one. The kernel frees the lock of a process that dies.
 */
export function claimSuccession(libc: Libc, folder: string): Succession {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const path = takeoverPath(folder).replace(/sock$/, 'successor')
  for (;;) {
    const fd = openSync(path, 'a', 0o600)
    if (libc.flock(fd, exclusiveNonBlocking) < 0) {
      closeSync(fd)
      throw new KernelError(
        'busy',
        `take over listeners: another process starts or takes over now (it holds ${path}), and this one ends; start it again once that one serves`,
      )
    }
    if (isAt(fd, path)) {
      return {
        release: () => {
          rmSync(path, { force: true })
          closeSync(fd)
        },
      }
    }
    // The holder before removed the file between our opening it and locking it.
    closeSync(fd)
  }
}

function isAt(fd: number, path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.ino === fstatSync(fd).ino
}
