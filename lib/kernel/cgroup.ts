import { closeSync, openSync, readFileSync, statfsSync, statSync } from 'node:fs'
import { KernelError, messageOf } from '../errors.js'

const cgroup2Magic = 0x63677270

/** The root of the hierarchy is always this inode of its file system. */
const rootId = 1n

/** A cgroup of version 2 that is held open. */
export interface OpenCgroup {
  readonly path: string
  readonly fd: number
  /** As links name it. */
  readonly id: bigint
  /** Every process of the machine is in it, whatever its namespaces are. */
  readonly isRoot: boolean
  close(): void
}

/** Opens a folder of cgroup2; empty means where its root is mounted. */
export function openCgroup(folder: string): OpenCgroup {
  const path = folder === '' ? mountOf('cgroup2') : folder
  if (path === undefined) {
    throw new KernelError(
      'unsupported',
      'open the root of cgroup2: it is mounted nowhere; mount it, or mount it into the container',
    )
  }
  if (!isCgroup(path)) {
    throw new KernelError('invalid', `open cgroup ${path}: this is no folder of cgroup2`)
  }
  let fd: number
  try {
    fd = openSync(path, 'r')
  } catch (cause) {
    throw new KernelError('not-found', `open cgroup ${path}: ${messageOf(cause)}`, { cause })
  }
  const id = statSync(path, { bigint: true }).ino
  return { path, fd, id, isRoot: id === rootId, close: () => closeSync(fd) }
}

/** Whatever cannot be looked at is found out by opening it. */
function isCgroup(path: string): boolean {
  try {
    return statfsSync(path).type === cgroup2Magic
  } catch {
    return true
  }
}

/** Where a file system of that type is mounted first, as this process sees it. */
export function mountOf(type: string, mounts?: string): string | undefined {
  return mountsOf(type, mounts)[0]
}

/** All places where a file system of that type is mounted. */
export function mountsOf(
  type: string,
  mounts: string = readFileSync('/proc/self/mountinfo', 'utf8'),
): readonly string[] {
  return mounts.split('\n').flatMap((line) => {
    const [left = '', right = ''] = line.split(' - ')
    const path = left.split(' ')[4]
    if (right.split(' ')[0] !== type || path === undefined) return []
    // The kernel writes blanks in paths as octal numbers.
    return path.replace(/\\(\d{3})/g, (_, digits: string) =>
      String.fromCharCode(Number.parseInt(digits, 8)),
    )
  })
}
