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
