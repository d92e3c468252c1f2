import koffi from 'koffi'

/** The program that started this process and supervises it: systemd, by sd_notify(3). */
interface ServiceManager {
  /** Sends lines such as `READY=1`. Returns why that failed, or undefined. */
  notify(text: string): string | undefined
  /** The interval in ms at which it expects `WATCHDOG=1`; undefined if it does not expect it. */
  readonly watchdogMs: number | undefined
}

const unixFamily = 1
const datagram = 2
const closeOnExec = 0o2000000
const dontWait = 0x40
const noSignal = 0x4000
const maxPath = 108

/** From the environment that systemd sets; undefined without a service manager. */
export function serviceManagerOf(
  env: Readonly<Record<string, string | undefined>>,
  pid = process.pid,
): ServiceManager | undefined {
  const socket = env['NOTIFY_SOCKET'] ?? ''
  const address = addressOf(socket)
  if (address === undefined) return undefined
  return { notify: (text) => send(address, text), watchdogMs: watchdogOf(env, pid) }
}

/** The bytes of a `struct sockaddr_un`; a leading `@` stands for the 0 of an abstract socket. */
function addressOf(socket: string): Buffer | undefined {
  const path = Buffer.from(socket)
  if (!/^[/@]./s.test(socket) || path.length >= maxPath || path.includes(0)) return undefined
  const address = Buffer.alloc(2 + path.length)
  address.writeUInt16LE(unixFamily)
  path.copy(address, 2)
  if (socket.startsWith('@')) address[2] = 0
  return address
}

function watchdogOf(
  env: Readonly<Record<string, string | undefined>>,
  pid: number,
): number | undefined {
  const microseconds = Number(env['WATCHDOG_USEC'] ?? 0)
  const meant = env['WATCHDOG_PID'] ?? ''
  if (!(microseconds > 0) || (meant !== '' && meant !== String(pid))) return undefined
  // Half of the time that systemd allows, as its manual advises.
  return microseconds / 1000 / 2
}

/**
 * Calls the C library, because Node has no datagram sockets of this family. Never waits: a message
 * to a full queue is lost.
 */
function send(address: Buffer, text: string): string | undefined {
  const libc = koffi.load(null)
  const socket = libc.func('int socket(int, int, int)') as (...of: number[]) => number
  const sendto = libc.func(
    'long sendto(int, const void *, size_t, int, const void *, unsigned int)',
  ) as (...of: (number | Buffer)[]) => number
  const close = libc.func('int close(int)') as (fd: number) => number
  const fd = socket(unixFamily, datagram | closeOnExec, 0)
  if (fd < 0) return `open a socket: error ${koffi.errno()}`
  try {
    const bytes = Buffer.from(text)
    const sent = sendto(fd, bytes, bytes.length, dontWait | noSignal, address, address.length)
    return sent < 0 ? `send to the service manager: error ${koffi.errno()}` : undefined
  } finally {
    close(fd)
  }
}
