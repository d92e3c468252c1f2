import { spawnSync } from 'node:child_process'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { execSync } from './run-sync.js'

/** A reason to skip a test that needs its own network namespace, or false. */
export const netnsSkip: string | false = (() => {
  if (process.getuid?.() !== 0) return 'needs root for a network namespace'
  const probe = spawnSync('unshare', ['-n', 'true'])
  return probe.status === 0 ? false : 'network namespaces are not available here'
})()

/** A reason to skip a test that runs this program, or false. */
export function programSkip(program: string): string | false {
  return spawnSync(program, ['--version']).error ? `${program} is not installed` : false
}

export interface NetworkNamespace {
  readonly name: string
  /** Runs a program inside and returns what it printed; throws when it fails. */
  exec(file: string, ...args: string[]): string
  remove(): void
}

let created = 0

/** Makes a network namespace. The process id in its name keeps test files apart. */
export function createNetns(label: string): NetworkNamespace {
  const name = `${label}-${process.pid}-${++created}`
  execSync('ip', ['netns', 'add', name])
  return {
    name,
    // `ip netns exec` is one more program, and makes mounts.
    exec: (file, ...args) => insideNamespace(name, () => execSync(file, args)),
    remove: () => void execSync('ip', ['netns', 'delete', name]),
  }
}
