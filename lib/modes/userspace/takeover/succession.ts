import { closeSync, fstatSync, openSync, rmSync, statSync } from 'node:fs'
import { KernelError } from '../../../errors.js'
import type { Libc } from '../../../kernel/sockets/libc.js'
import { makeOwnFolder } from '../../../kernel/own-folder.js'
import { takeoverPath } from './protocol.js'

const exclusiveNonBlocking = 2 | 4

/**
 * Takes a lock that one process holds from its start until other processes can ask for its
 * listeners, and returns what releases it. Without it a process that takes over while another one
 * starts would find nobody to ask and start like the first process on a node, and both would stay.
 * Throws a KernelError `busy` when another process has the lock. The kernel frees the lock of a
 * process that dies.
 */
export function claimSuccession(libc: Libc, folder: string): () => void {
  makeOwnFolder(folder)
  const path = successionPath(folder)
  for (;;) {
    const fd = openSync(path, 'a', 0o600)
    if (libc.flock(fd, exclusiveNonBlocking) < 0) {
      closeSync(fd)
      throw new KernelError(
        'busy',
        `take over listeners: another process starts or takes over now (it holds ${path}), and this one ends; start it again once the other process serves`,
      )
    }
    if (statSync(path, { throwIfNoEntry: false })?.ino === fstatSync(fd).ino) {
      return () => {
        rmSync(path, { force: true })
        closeSync(fd)
      }
    }
    // The last holder removed the file after this process had opened it.
    closeSync(fd)
  }
}

/** The file that is locked. A process that is killed before it serves leaves it. */
export function successionPath(folder: string): string {
  return takeoverPath(folder).replace(/sock$/, 'successor')
}
