import { closeSync, openSync } from 'node:fs'
import koffi from 'koffi'
import { KernelError, messageOf } from '../../errors.js'

const cloneNewNet = 0x40000000

/**
 * Moves the calling thread into a named network namespace, for good: every socket it makes and
 * every process it starts from then on belongs there. Other threads are not touched, so a worker
 * thread is all it takes to be somewhere else.
 */
export function joinNetworkNamespace(name: string): void {
  const setns = koffi.load(null).func('int setns(int fd, int nstype)')
  let descriptor: number
  try {
    descriptor = openSync(`/run/netns/${name}`, 'r')
  } catch (cause) {
    throw new KernelError('not-found', `join namespace ${name}: ${messageOf(cause)}`, { cause })
  }
  try {
    if (setns(descriptor, cloneNewNet) !== 0) {
      throw new KernelError('denied', `join namespace ${name}: refused; run as root`)
    }
  } finally {
    closeSync(descriptor)
  }
}
