import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync, readdirSync } from 'node:fs'
import { codeOf, ifPossible, KernelError, messageOf } from '../../errors.js'
import { runCommand } from '../../kernel/command.js'
import { enterNamespace } from '../../kernel/network-namespaces.js'
import type { NamespaceNames } from './links.js'
import { places, type Place } from './topology.js'

const prefix = 'kpw'
const namespacePattern = /^kpw-(\d+)-(\d+)-/

/**
 * Names of a world's namespaces: `kpw-PID-STARTED-WORLD-PLACE`. Process number and start time
 * identify the owner, so that a later run finds the worlds whose owner has ended.
 */
export function namespaceNames(world: string): NamespaceNames {
  const entries = places.map((place): [Place, string] => [place, ownedName(`${world}-${place}`)])
  return Object.fromEntries(entries) as Record<Place, string>
}

/** A name that tells which process it belongs to, see `isOrphan`. */
export function ownedName(rest: string): string {
  return `${prefix}-${process.pid}-${startTimeOf(process.pid)}-${rest}`
}

/** Runs a batch of `ip` commands, in one process; `namespace` undefined means the host's. */
export async function ipBatch(
  commands: readonly string[],
  namespace: string | undefined,
): Promise<void> {
  const where = namespace === undefined ? [] : ['-n', namespace]
  const result = await runCommand('ip', [...where, '-batch', '-'], {
    stdin: commands.map((command) => `${command}\n`).join(''),
    timeoutMs: 600_000,
  }).catch(withoutProgram)
  if (result.code === 0) return
  const denied = /not permitted|Permission denied/.test(result.stderr)
  throw new KernelError(
    denied ? 'denied' : 'failed',
    `build a world${namespace === undefined ? '' : ` in ${namespace}`}: ip failed; ` +
      (denied ? 'run as root' : 'see the detail'),
    { detail: result.stderr },
  )
}

function withoutProgram(cause: unknown): never {
  if (!(cause instanceof KernelError && cause.kind === 'not-found')) throw cause
  const message = 'build a world: the program ip is missing; install iproute2'
  throw new KernelError('unsupported', message, { cause })
}

/**
 * Creates the namespaces in one process. In a user namespace a process may not return to its first
 * namespace, so there each one is created by its own process.
 */
export async function addNamespaces(names: readonly string[]): Promise<void> {
  const commands = names.map((name) => `netns add ${name}`)
  try {
    await ipBatch(commands, undefined)
  } catch (error) {
    if (!(error instanceof KernelError && error.detail.includes('setns'))) throw error
    const made = new Set(listNamespaces())
    for (const name of names) {
      if (!made.has(name)) await runCommand('ip', ['netns', 'add', name])
    }
  }
}

/**
 * Ends the processes inside the namespaces given as arguments, then removes the namespaces. Two
 * processes of `ip` do it for all of them. `kill` is the shell's own: a bare system has no other.
 */
const removeScript =
  'cat >/dev/null; each() { for n; do echo "netns $verb $n"; done | ip -force -batch - 2>/dev/null; }; ' +
  'verb=pids; kill -9 $(each "$@") 2>/dev/null; verb=delete; each "$@"; exit 0'

/**
 * A shell that waits for the end of its input and then removes the namespaces. The pipe also closes
 * when this process is killed, so a crash leaves nothing behind. A normal end uses the same pipe,
 * so every run tests it. The returned function removes the namespaces now.
 */
export function startReaper(names: readonly string[]): () => Promise<void> {
  const child = spawn('sh', ['-c', removeScript, 'world-reaper', ...names], {
    stdio: ['pipe', 'ignore', 'ignore'],
    // It has a session of its own, so that Ctrl-C ends the owner and not the cleaner.
    detached: true,
  })
  const exited = once(child, 'exit')
  child.unref()
  return async () => {
    child.ref()
    child.stdin.end()
    await exited
  }
}

/** Removes worlds whose owner has ended, in case the reaper was killed, too. */
export async function sweepWorlds(): Promise<readonly string[]> {
  const orphans = listNamespaces().filter(isOrphan)
  if (orphans.length > 0) await startReaper(orphans)()
  return orphans
}

/**
 * A name of this program whose owner has ended. An owner of which nothing can be read, as without a
 * free descriptor, may live.
 */
export function isOrphan(name: string): boolean {
  const [, pid, started] = namespacePattern.exec(name) ?? []
  if (pid === undefined) return false
  try {
    return startTimeOf(Number(pid)) !== Number(started)
  } catch (error) {
    return ['ENOENT', 'ESRCH'].includes(codeOf(error))
  }
}

const listNamespaces = () => ifPossible(() => readdirSync('/run/netns')) ?? []

/** When a process started, in clock ticks since boot: field 22 of its stat line. */
function startTimeOf(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19])
}

/**
 * Moves the calling thread into a named network namespace until it ends. Every socket and process
 * that it makes after that is in this namespace. Other threads stay where they are, so a worker
 * thread can be in another namespace.
 */
export function joinNetworkNamespace(name: string): void {
  let descriptor: number
  try {
    descriptor = openSync(`/run/netns/${name}`, 'r')
  } catch (cause) {
    throw new KernelError('not-found', `join namespace ${name}: ${messageOf(cause)}`, { cause })
  }
  try {
    if (!enterNamespace(descriptor)) {
      throw new KernelError('denied', `join namespace ${name}: refused; run as root`)
    }
  } finally {
    closeSync(descriptor)
  }
}
