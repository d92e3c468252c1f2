import koffi from 'koffi'

const calls = { setup: 425, enter: 426 } as const
const connectOperation = 16
const waitForOne = 1
const sharedPopulated = 0x8001
const readWrite = 3
const entriesAt = 0x10000000
const entryBytes = 64
const pageBytes = 4096
/** `struct io_uring_params`: its size, and where the offsets of the two rings begin. */
const params = { bytes: 120, submit: 40, complete: 80 } as const

/** Connects a socket by io_uring, as programs do that never call connect(). */
export function connectByRing(fd: number, to: Buffer): number {
  const library = koffi.load(null)
  const setup = library.func('long syscall(long, unsigned int, void *)')
  const enter = library.func(
    'long syscall(long, int, unsigned int, unsigned int, unsigned int, void *, size_t)',
  )
  const mmap = library.func('intptr_t mmap(uintptr_t, size_t, int, int, int, long)')
  const close = library.func('int close(int)')
  const given = Buffer.alloc(params.bytes)
  const ring = Number(setup(calls.setup, 1, given))
  if (ring < 0) return -koffi.errno()
  const view = (at: number) =>
    Buffer.from(
      koffi.view(
        BigInt(mmap(0, pageBytes, readWrite, sharedPopulated, ring, at) as number),
        pageBytes,
      ),
    )
  try {
    const [rings, entry] = [view(0), view(entriesAt)]
    const place = Buffer.from(new ArrayBuffer(to.length))
    place.set(to)
    entry.fill(0, 0, entryBytes)
    entry.writeUInt8(connectOperation, 0)
    entry.writeInt32LE(fd, 4)
    entry.writeBigUInt64LE(BigInt(to.length), 8)
    entry.writeBigUInt64LE(koffi.address(place.buffer), 16)
    const offset = (at: number) => given.readUInt32LE(at)
    rings.writeUInt32LE(0, offset(params.submit + 24))
    rings.writeUInt32LE(1, offset(params.submit + 4))
    const result = Number(enter(calls.enter, ring, 1, 1, waitForOne, null, 0))
    if (result < 0) return -koffi.errno()
    return rings.readInt32LE(offset(params.complete + 20) + 8)
  } finally {
    close(ring)
  }
}
