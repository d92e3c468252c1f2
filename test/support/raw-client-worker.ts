/** The thread behind raw-client.ts. It blocks in system calls, so servers are in other threads. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { getSystemErrorName } from 'node:util'
import { parentPort, workerData } from 'node:worker_threads'
import koffi from 'koffi'
import { connectByRing } from './io-uring.js'
import type { RawAnswer, RawQuestion } from './raw-client.js'

const [inet, stream, datagram] = [2, 1, 2]
const nonBlocking = 0x800
/** `EINPROGRESS`, for which Node has no name. */
const inProgress = -115
const multipath = 262
const fastOpen = 0x20000000
const newNetwork = 0x40000000
const bindMount = 0x1000
const setFlags = 0x8914
const isUp = 1
const options = { level: 1, receive: 20, error: 4 } as const
/** The seconds for an answer that must come, and until no answer means silence. */
const [patience, silence] = [300, 3]

const library = koffi.load(null)
const func = (text: string) => {
  const call = library.func(text) as (...given: unknown[]) => number | bigint
  return (...given: unknown[]): number => {
    const result = Number(call(...given))
    return result < 0 ? -koffi.errno() : result
  }
}
const socket = func('int socket(int, int, int)')
const connect = func('int connect(int, const void *, unsigned int)')
const sendto = func('long sendto(int, const void *, size_t, int, const void *, unsigned int)')
const recv = func('long recv(int, void *, size_t, int)')
const bind = func('int bind(int, const void *, unsigned int)')
const listen = func('int listen(int, int)')
const getsockname = func('int getsockname(int, void *, void *)')
const getpeername = func('int getpeername(int, void *, void *)')
const getsockopt = func('int getsockopt(int, int, int, void *, void *)')
const setsockopt = func('int setsockopt(int, int, int, const void *, unsigned int)')
const ioctl = func('int ioctl(int, unsigned long, void *)')
const unshare = func('int unshare(int)')
const mount = func('int mount(const char *, const char *, const char *, unsigned long, void *)')
const close = func('int close(int)')

const kept: number[] = []

writeFileSync(join(workerData as string, 'cgroup.threads'), '0')
parentPort?.on('message', (question: RawQuestion) => parentPort?.postMessage(answerTo(question)))

function answerTo(question: RawQuestion): RawAnswer {
  switch (question.do) {
    case 'fastopen':
    case 'mptcp':
    case 'io_uring':
      return connectOnce(question.do, address(question.host, question.port))
    case 'reconnect':
      return reconnect(question.to.map(({ host, port }) => address(host, port)))
    case 'namespaces':
      return connectInEach(address(question.host, question.port), question.paths)
    case 'errors':
      return kept.map(errorOf)
    case 'hold':
      return Array.from({ length: question.count }, () => {
        return hold(question.how, address(question.host, question.port))
      })
    case 'close':
      return kept.splice(0, question.count).map((fd) => nameOrDone(close(fd)))
    case 'listen':
      return [listenOnly(address(question.host, 1))]
  }
}

function connectOnce(how: 'fastopen' | 'mptcp' | 'io_uring', to: Buffer): RawAnswer {
  const fd = socket(inet, stream, how === 'mptcp' ? multipath : 0)
  if (fd < 0) return [nameOf(fd)]
  try {
    waitAtMost(fd, patience)
    const result = connectBy(how, fd, to)
    return result < 0 ? [nameOf(result)] : [hear(fd), peerOf(fd)]
  } finally {
    close(fd)
  }
}

function connectBy(how: 'fastopen' | 'mptcp' | 'io_uring', fd: number, to: Buffer): number {
  if (how === 'fastopen') return sendto(fd, Buffer.from('ask'), 3, fastOpen, to, to.length)
  return how === 'mptcp' ? connect(fd, to, to.length) : connectByRing(fd, to)
}

function hold(how: (RawQuestion & { do: 'hold' })['how'], to: Buffer): string {
  const kind = how === 'udp' ? datagram : stream
  const flags = how === 'begin' ? nonBlocking : 0
  const fd = socket(inet, kind | flags, how === 'mptcp' ? multipath : 0)
  if (fd < 0) return nameOf(fd)
  kept.push(fd)
  const isPlain = how === 'tcp' || how === 'begin' || how === 'udp'
  return nameOrDone(isPlain ? connect(fd, to, to.length) : connectBy(how, fd, to))
}

const nameOrDone = (result: number) =>
  result === inProgress ? 'begun' : result < 0 ? nameOf(result) : 'done'

function listenOnly(at: Buffer): string {
  at.writeUInt16BE(0, 2)
  const fd = socket(inet, stream, 0)
  const length = Buffer.from(Uint32Array.of(at.length).buffer)
  const failed = [bind(fd, at, at.length), listen(fd, 0), getsockname(fd, at, length)]
  const failure = failed.find((result) => result < 0)
  return failure === undefined ? String(at.readUInt16BE(2)) : nameOf(failure)
}

function reconnect(places: readonly Buffer[]): RawAnswer {
  const fd = socket(inet, datagram, 0)
  try {
    return places.flatMap((to) => {
      // Nobody answers a socket that is not connected.
      waitAtMost(fd, to.readUInt16LE(0) === inet ? patience : silence)
      const result = connect(fd, to, to.length)
      if (result < 0) return [nameOf(result)]
      sendto(fd, Buffer.from('ask'), 3, 0, null, 0)
      return [hear(fd), peerOf(fd)]
    })
  } finally {
    close(fd)
  }
}

function connectInEach(to: Buffer, paths: readonly string[]): RawAnswer {
  const failures: string[] = []
  for (const path of paths) {
    writeFileSync(path, '')
    for (const result of [
      unshare(newNetwork),
      mount('/proc/thread-self/ns/net', path, null, bindMount, null),
    ]) {
      if (result < 0) failures.push(nameOf(result))
    }
    const fd = socket(inet, datagram, 0)
    // `struct ifreq`: a name of 16 bytes, and flags.
    const loopback = Buffer.alloc(40)
    loopback.write('lo')
    loopback.writeUInt16LE(isUp, 16)
    ioctl(fd, setFlags, loopback)
    const result = connect(fd, to, to.length)
    if (result < 0) failures.push(nameOf(result))
    kept.push(fd)
  }
  return failures
}

/** Port 0 means AF_UNSPEC: connect() to it ends the connection of a UDP socket. */
function address(host: string, port: number): Buffer {
  const bytes = Buffer.alloc(16)
  bytes.writeUInt16LE(port === 0 ? 0 : inet, 0)
  bytes.writeUInt16BE(port, 2)
  bytes.set(host.split('.').map(Number), 4)
  return bytes
}

function waitAtMost(fd: number, seconds: number): void {
  const time = Buffer.alloc(16)
  time.writeBigInt64LE(BigInt(seconds), 0)
  setsockopt(fd, options.level, options.receive, time, time.length)
}

function hear(fd: number): string {
  const bytes = Buffer.alloc(64)
  const count = recv(fd, bytes, bytes.length, 0)
  return count < 0 ? nameOf(count) : bytes.toString('utf8', 0, count)
}

function peerOf(fd: number): string {
  const bytes = Buffer.alloc(16)
  const length = Buffer.from(Uint32Array.of(bytes.length).buffer)
  const result = getpeername(fd, bytes, length)
  return result < 0 ? nameOf(result) : `${bytes.subarray(4, 8).join('.')} ${bytes.readUInt16BE(2)}`
}

function errorOf(fd: number): string {
  const value = Buffer.alloc(4)
  const length = Buffer.from(Uint32Array.of(value.length).buffer)
  getsockopt(fd, options.level, options.error, value, length)
  const error = value.readInt32LE(0)
  return error === 0 ? 'none' : nameOf(-error)
}

function nameOf(result: number): string {
  return getSystemErrorName(result)
}
