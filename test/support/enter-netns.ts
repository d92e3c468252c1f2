import { closeSync, openSync } from 'node:fs'
import koffi from 'koffi'

const anyNamespace = 0

type SetNamespace = (fd: number, kind: number) => number
let setns: SetNamespace | undefined

/**
 * Does something while this thread is inside the namespace. A socket that is opened meanwhile stays
 * in the namespace, and a program that is started meanwhile runs there.
 */
export function inside<T>(netns: { readonly name: string }, work: () => T): T {
  setns ??= koffi.load(null).func('int setns(int, int)') as SetNamespace
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
