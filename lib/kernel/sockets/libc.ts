import { KernelError, messageOf } from '../../errors.js'
import { isLinux } from '../../platform.js'
import { isLittleEndian } from '../netlink/protocol.js'

/** Such a socket or pipe never blocks, and programs that are started do not inherit it. */
export const nonBlockingCloexec = 0o4000 | 0o2000000

/**
 * The system calls of the `splice` data path, as the C library exports them. Every call returns a
 * result or the negative error number, like the kernel. Pointers are plain numbers, see
 * {@link NativeMemory}; 0 is NULL.
 */
export type Libc = ReturnType<typeof bind>

/** The caller keeps a reference: the watch stops when it is garbage-collected. */
export interface Watch {
  /** The callback runs again and again while the descriptor is readable. */
  start(): void
  stop(): void
  close(): void
}

/**
 * Binds the C library that this process has already loaded, glibc or musl. Throws a KernelError
 * where that cannot work.
 */
export async function loadLibc(): Promise<Libc> {
  // The layouts of this folder are those of 64-bit little-endian Linux: x64, arm64, riscv64, …
  if (!isLinux() || !isLittleEndian || !/64/.test(process.arch)) {
    throw new KernelError(
      'unsupported',
      `use raw sockets on ${process.platform}/${process.arch}: only 64-bit little-endian Linux ` +
        'is supported; use the net data path',
    )
  }
  try {
    return bind((await import('koffi')).default)
  } catch (cause) {
    throw new KernelError(
      'unsupported',
      `load the C library with koffi: ${messageOf(cause)}; use the net data path`,
      { cause },
    )
  }
}

type Koffi = (typeof import('koffi'))['default']
/** As many numbers as the text has words. */
type Numbers<Words extends string> = Words extends `${string} ${infer Rest}`
  ? [number, ...Numbers<Rest>]
  : [number]

function bind(koffi: Koffi) {
  const library = koffi.load(null)
  // `int` is wide enough for every result and length used here.
  const call = <Types extends string>(name: string, types: Types) => {
    const native: (...values: number[]) => number = library.func(name, 'int', types.split(' '))
    return (...values: Numbers<Types>): number => {
      const result = native(...values)
      return result < 0 ? -koffi.errno() : result
    }
  }
  return {
    socket: call('socket', 'int int int'),
    bind: call('bind', 'int uintptr_t int'),
    listen: call('listen', 'int int'),
    accept4: call('accept4', 'int uintptr_t uintptr_t int'),
    connect: call('connect', 'int uintptr_t int'),
    getsockname: call('getsockname', 'int uintptr_t uintptr_t'),
    setsockopt: call('setsockopt', 'int int int uintptr_t int'),
    getsockopt: call('getsockopt', 'int int int uintptr_t uintptr_t'),
    shutdown: call('shutdown', 'int int'),
    close: call('close', 'int'),
    recv: call('recv', 'int uintptr_t size_t int'),
    send: call('send', 'int uintptr_t size_t int'),
    fcntl: call('fcntl', 'int int long'),
    flock: call('flock', 'int int'),
    pipe2: call('pipe2', 'uintptr_t int'),
    splice: call('splice', 'int uintptr_t int uintptr_t size_t int'),
    epoll_create1: call('epoll_create1', 'int'),
    epoll_ctl: call('epoll_ctl', 'int int int uintptr_t'),
    epoll_wait: call('epoll_wait', 'int uintptr_t int int'),
    recvmmsg: call('recvmmsg', 'int uintptr_t int int uintptr_t'),
    sendmmsg: call('sendmmsg', 'int uintptr_t int int'),
    recvmsg: call('recvmsg', 'int uintptr_t int'),
    sendmsg: call('sendmsg', 'int uintptr_t int'),
    addressOf: (memory: ArrayBuffer) => Number(koffi.address(memory)),
    /** Watches a descriptor from Node's own loop; does not keep the thread alive. */
    watch: (fd: number, onReadable: () => void): Watch => {
      const callback = asNodeCalls(onReadable)
      const handle = koffi.node.poll(fd, { readable: true }, callback)
      handle.unref()
      return {
        start: () => handle.start({ readable: true }, callback),
        stop: () => handle.stop(),
        close: () => handle.close(),
      }
    },
  }
}

let isDraining = false

/**
 * Makes of a callback for koffi what it is for Node. An error that gets into koffi stops the watch
 * for good, and aborts the process at its end. And since Node 26, promises that a callback of koffi
 * resolves wait for the next event of the loop, which may be half a minute away.
 */
export function asNodeCalls(callback: () => void): () => void {
  return () => {
    try {
      callback()
    } catch (error) {
      setImmediate(() => {
        throw error
      })
    }
    if (isDraining) return
    isDraining = true
    setImmediate(() => (isDraining = false))
  }
}

/**
 * Bytes that the kernel reads and writes at a fixed address. The address is passed as a number,
 * which saves looking up a buffer in each call, and offsets cost nothing.
 */
export interface NativeMemory {
  readonly bytes: Buffer
  readonly view: DataView
  /** Below 2^47 on all supported architectures, so it is exact as a number. */
  readonly address: number
}

/** Allocates an ArrayBuffer: small typed arrays may be in the heap, where they move. */
export function allocateNative(libc: Pick<Libc, 'addressOf'>, size: number): NativeMemory {
  const memory = new ArrayBuffer(size)
  return {
    bytes: Buffer.from(memory),
    view: new DataView(memory),
    address: libc.addressOf(memory),
  }
}
