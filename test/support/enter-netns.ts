import { closeSync, openSync } from 'node:fs'
import koffi from 'koffi'
import type { NetworkNamespace } from './netns.js'

const anyNamespace = 0

/**
 * Does something while this thread is inside the namespace. A socket that is opened meanwhile stays
 * in the namespace, and a program that is started meanwhile runs there.
 */
export function inside<T>(netns: NetworkNamespace, work: () => T): T {
  const setns = koffi.load(null).func('int setns(int, int)')
  const home = openSync('/proc/thread-self/ns/net', 'r')
  const away = openSync(`/run/netns/${netns.name}`, 'r')
  try {
    if (setns(away, anyNamespace) !== 0) throw new Error(`enter ${netns.name}: refused`)
    return work()
  } finally {
    setns(home, anyNamespace)
    closeSync(home)
    closeSync(away)
  }
}
