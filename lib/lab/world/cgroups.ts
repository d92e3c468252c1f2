import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { codeOf, KernelError, messageOf } from '../../errors.js'
import { mountOf } from '../../kernel/cgroup.js'
import { isOrphan, ownedName } from './namespaces.js'

const patienceMs = 300_000
const stepMs = 10

/**
 * Makes a cgroup below that of this process for the threads of its agents. It is a threaded one:
 * only those may have single threads of a process.
 */
export function addNodeCgroup(world: string): string {
  const folder = join(ownCgroup(), ownedName(world))
  mkdirSync(folder)
  try {
    writeFileSync(join(folder, 'cgroup.type'), 'threaded')
  } catch (error) {
    rmdirSync(folder)
    throw error
  }
  return folder
}

/** Why no such cgroup can be made here; undefined if it can. */
export function refusalOfCgroup(): string | undefined {
  try {
    rmdirSync(addNodeCgroup('trial'))
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}

/** Starts a program that sees no pins of this machine: `cleanup` and daemons remove all that they see. */
export const withoutPins = [
  ...['unshare', '--mount', 'sh', '-c'],
  ...['umount --all --types bpf; exec "$@"', 'sh'],
]

/** Removes a cgroup. A thread that has ended may need a moment to leave it. */
export async function removeCgroup(folder: string): Promise<void> {
  const end = performance.now() + patienceMs
  for (;;) {
    try {
      rmdirSync(folder)
      return
    } catch (error) {
      if (performance.now() > end) throw error
    }
    await sleep(stepMs)
  }
}

/**
 * Removes cgroups whose owner has ended. One with threads stays: its owner lives where process
 * numbers are others, or its threads need a moment. Another process may sweep at the same time.
 */
export function sweepCgroups(): void {
  const own = ownCgroup()
  for (const name of readdirSync(own).filter(isOrphan)) {
    try {
      rmdirSync(join(own, name))
    } catch (error) {
      if (!['EBUSY', 'ENOENT'].includes(codeOf(error))) throw error
    }
  }
}

function ownCgroup(): string {
  const root = mountOf('cgroup2')
  if (root === undefined)
    throw new KernelError('unsupported', 'make a cgroup: no cgroup2 is mounted')
  const path = /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8'))?.[1] ?? '/'
  return join(root, path)
}
