import koffi from 'koffi'
import { isLittleEndian } from '../netlink/protocol.js'
import { KernelError } from '../../errors.js'
import { isLinux } from '../../platform.js'
import { failureOf, kernelErrorOf } from '../netlink/failure.js'

/** The system calls of eBPF. Each takes about 0.2 us to enter from here. */
export interface SystemCalls {
  /** bpf(2): a result, or the negative error number. */
  bpf(command: number, attributes: Uint8Array): number
  /** Maps an array of the kernel into this process, as words that only `Atomics` may touch. */
  mapWords(fd: number, bytes: number): BigInt64Array
  /** Maps memory of the kernel into this process, to read only. */
  mapReadOnly(fd: number, bytes: number): ArrayBuffer
  unmap(memory: ArrayBufferLike): void
  readonly pageBytes: number
  /**
   * The address of memory for the kernel. The caller keeps the memory from being garbage-collected.
   */
  addressOf(memory: ArrayBufferLike): bigint
  close(fd: number): void
}

/** `__NR_bpf` of the architectures that Node runs on. */
const callNumbers: Readonly<Partial<Record<string, number>>> = {
  x64: 321,
  arm64: 280,
  riscv64: 280,
  loong64: 280,
  ppc64: 361,
}

const readOnly = 1
const readWrite = 3
const shared = 1

/** Throws a KernelError on machines whose layouts this folder does not know. */
export function openSystemCalls(): SystemCalls {
  const number = callNumbers[process.arch]
  if (!isLinux() || number === undefined || !isLittleEndian) {
    throw new KernelError(
      'unsupported',
      `use eBPF on ${process.platform}/${process.arch}: only 64-bit little-endian Linux is ` +
        'supported; use nftables mode',
    )
  }
  const library = koffi.load(null)
  const bpf = library.func('long syscall(long, int, const void *, unsigned int)')
  const close = library.func('int close(int)')
  const mmap = library.func('intptr_t mmap(uintptr_t, size_t, int, int, int, long)')
  const munmap = library.func('int munmap(uintptr_t, size_t)')
  const map = (fd: number, bytes: number, access: number): ArrayBuffer => {
    const address: unknown = mmap(0, bytes, access, shared, fd, 0)
    if (typeof address !== 'number' && typeof address !== 'bigint') {
      throw new KernelError('failed', 'map memory of the kernel: mmap gave no address')
    }
    if (Number(address) === -1) {
      throw kernelErrorOf(failureOf(koffi.errno()), `map ${bytes} bytes of the kernel`)
    }
    return koffi.view(BigInt(address), bytes)
  }
  return {
    bpf: (command, attributes) => {
      const result = Number(bpf(number, command, attributes, attributes.length))
      return result < 0 ? -koffi.errno() : result
    },
    mapWords: (fd, bytes) => new BigInt64Array(map(fd, bytes, readWrite)),
    mapReadOnly: (fd, bytes) => map(fd, bytes, readOnly),
    unmap: (memory) => {
      munmap(koffi.address(memory), memory.byteLength)
    },
    pageBytes: Number(library.func('int getpagesize()')()),
    addressOf: (memory) => koffi.address(memory),
    close: (fd) => {
      close(fd)
    },
  }
}
