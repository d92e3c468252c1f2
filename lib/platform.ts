/**
 * The one place that asks which operating system this is. Code for the kernel of Linux is loaded or
 * run only behind `isLinux`. Elsewhere its work is left out, and the log or `check` says so.
 */
export type System = 'linux' | 'win32' | 'other'

export function systemHere(platform: string = process.platform): System {
  return platform === 'linux' || platform === 'win32' ? platform : 'other'
}

/** Whether there are sysctls, netlink, conntrack, /proc, and sockets that processes can pass on. */
export function isLinux(): boolean {
  return systemHere() === 'linux'
}

/** Whether a version such as `6.12.117+deb13-cloud-amd64` is this one or newer. */
export function atLeast(version: string, least: readonly number[]): boolean {
  const parts = version.split(/[.-]/).map((part) => Number.parseInt(part, 10))
  for (const [index, wanted] of least.entries()) {
    const part = parts[index] ?? 0
    if (Number.isNaN(part)) return false
    if (part !== wanted) return part > wanted
  }
  return true
}

/** The number of processors in a list of the kernel, such as `0-3,8`. */
export function countProcessors(list: string): number {
  const ranges = list.trim().split(',')
  return ranges.reduce((sum, range) => {
    const [first = 0, last = first] = range.split('-').map(Number)
    return sum + last - first + 1
  }, 0)
}
