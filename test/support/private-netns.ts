import koffi from 'koffi'
import { startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'

// What needs a network starts many programs, and a fork of a test costs more than most of them.
await startProgramsQuickly()

const newNetworkNamespace = 0x40000000

/**
 * Moves this test process (its main thread, and every child it starts from now on) into a new
 * network namespace, which ends with the process. Returns the reason if that is not possible, for
 * `skip`.
 */
export function enterPrivateNetns(): string | undefined {
  if (process.platform !== 'linux') return 'needs Linux network namespaces'
  const unshare = koffi.load(null).func('int unshare(int)')
  if (unshare(newNetworkNamespace) === 0) return undefined
  return `cannot create a network namespace (errno ${koffi.errno()}); run as root`
}
