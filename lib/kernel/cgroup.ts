import { closeSync, openSync, readFileSync, statfsSync, statSync } from 'node:fs'
import { ifPossible, KernelError, messageOf } from '../errors.js'

const cgroup2Magic = 0x63677270

/** The root of the hierarchy is always this inode of its file system. */
const rootId = 1n

/** A cgroup of version 2 that is held open. */
export interface OpenCgroup {
  readonly path: string
  readonly fd: number
  /** The number by which a link names its cgroup. */
  readonly id: bigint
  /** The root cgroup holds every process of the machine, in all namespaces. */
  readonly isRoot: boolean
  close(): void
}

/** Opens a folder of cgroup2. An empty text means the folder where the root is mounted. */
export function openCgroup(folder: string): OpenCgroup {
  const path = folder === '' ? mountOf('cgroup2') : folder
  if (path === undefined) {
    throw new KernelError(
      'unsupported',
      'open the root of cgroup2: cgroup2 is mounted nowhere; mount it on the node, or into the container',
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

/** True also for a path that cannot be read: opening it then tells why. */
function isCgroup(path: string): boolean {
  return ifPossible(() => statfsSync(path).type === cgroup2Magic) ?? true
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
