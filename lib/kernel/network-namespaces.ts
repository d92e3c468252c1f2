import koffi from 'koffi'
import { closeSync, existsSync, openSync, readdirSync, statSync } from 'node:fs'
import { ifPossible, KernelError } from '../errors.js'
import { failureOf, kernelErrorOf } from './netlink/failure.js'

const networkNamespace = 0x40000000
const own = '/proc/thread-self/ns/net'
const named = '/run/netns'
const inet = 2
const datagramCloseOnExec = 2 | 0x80000
const socketLevel = 1
const networkCookieOption = 71

/**
 * The kernel's number of the network namespace of this process. eBPF programs see the same number.
 */
export function networkCookie(): bigint {
  return cookieReader()()
}

/** Binds the calls once for many namespaces: binding takes ten times as long as calling. */
function cookieReader(): () => bigint {
  const library = koffi.load(null)
  const socket = library.func('int socket(int, int, int)')
  const getsockopt = library.func('int getsockopt(int, int, int, void *, void *)')
  const close = library.func('int close(int)')
  const action = 'ask for the number of this network namespace'
  return () => {
    const fd = Number(socket(inet, datagramCloseOnExec, 0))
    if (fd < 0) throw kernelErrorOf(failureOf(koffi.errno()), action)
    try {
      const cookie = Buffer.alloc(8)
      const length = Buffer.from(Uint32Array.of(cookie.length).buffer)
      if (getsockopt(fd, socketLevel, networkCookieOption, cookie, length) !== 0) {
        throw kernelErrorOf(failureOf(koffi.errno()), action)
      }
      return cookie.readBigUInt64LE(0)
    } finally {
      close(fd)
    }
  }
}

/** Whether this process may enter the network namespaces of others (CAP_SYS_ADMIN). */
export function mayEnterNamespaces(): boolean {
  return ifPossible(() => inNamespace(openSync(own, 'r'), () => true)) ?? false
}

/**
 * Does something while this thread is inside a network namespace that has a name. A socket that is
 * opened meanwhile stays there, and a program that is started meanwhile runs there.
 */
export function insideNamespace<T>(name: string, work: () => T): T {
  return inNamespace(openSync(`${named}/${name}`, 'r'), work)
}

/**
 * Runs `work` inside each of these network namespaces, which are named by their cookies. A socket
 * that `work` opens stays in its namespace. Namespaces without a name and without a process are
 * left out.
 */
export function inNamespacesOf<T>(
  cookies: ReadonlySet<bigint>,
  work: () => T,
): ReadonlyMap<bigint, T> {
  const results = new Map<bigint, T>()
  const readCookie = cookieReader()
  const here = readCookie()
  if (cookies.has(here)) results.set(here, work())
  const { dev } = statSync(own)
  const seen = new Set<number>()
  for (const path of namespacePaths()) {
    if (results.size === cookies.size) break
    const inode = inodeOf(path, dev)
    if (inode === undefined || seen.has(inode)) continue
    seen.add(inode)
    const descriptor = ifPossible(() => openSync(path, 'r'))
    // The process has ended meanwhile, or this process may not look at it.
    if (descriptor === undefined) continue
    inNamespace(descriptor, () => {
      const cookie = readCookie()
      if (cookies.has(cookie) && !results.has(cookie)) results.set(cookie, work())
    })
  }
  return results
}

/** Namespaces with a name, which container runtimes give them, and namespaces of processes. */
function* namespacePaths(): Generator<string> {
  for (const entry of existsSync(named) ? readdirSync(named) : []) yield `${named}/${entry}`
  for (const entry of readdirSync('/proc')) {
    if (/^\d+$/.test(entry)) yield `/proc/${entry}/ns/net`
  }
}

/**
 * Undefined when the process has ended, or when this process may not look at it. Undefined also for
 * a file in /run/netns on another device: its namespace is gone, or mounted for others only.
 */
function inodeOf(path: string, device: number): number | undefined {
  const found = ifPossible(() => statSync(path))
  return found?.dev === device ? found.ino : undefined
}

type Setns = (descriptor: number, kind: number) => number

/** Bound once: binding takes ten times as long as calling. */
let setns: Setns | undefined

/** Moves the calling thread. Returns whether the kernel has let it. */
export function enterNamespace(descriptor: number): boolean {
  setns ??= koffi.load(null).func('int setns(int, int)') as Setns
  return setns(descriptor, networkNamespace) === 0
}

/**
 * The thread is in the other namespace only while `work` runs, so `work` must be synchronous. The
 * descriptor is closed.
 */
function inNamespace<T>(descriptor: number, work: () => T): T {
  const opened = [descriptor]
  try {
    const back = openSync(own, 'r')
    opened.push(back)
    if (!enterNamespace(descriptor)) {
      throw kernelErrorOf(failureOf(koffi.errno()), 'enter a network namespace')
    }
    try {
      return work()
    } finally {
      if (!enterNamespace(back)) {
        // Every socket from now on would be in the wrong network.
        process.exitCode = 1
        // oxlint-disable-next-line no-unsafe-finally -- this outranks what `work` has thrown
        throw new KernelError('failed', 'return to the own network namespace: refused')
      }
    }
  } finally {
    for (const each of opened) closeSync(each)
  }
}
