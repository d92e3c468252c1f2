/**
 * This module is loaded into the daemon before its own code. Signals change what the node gives the
 * process. With `RIGHTS=1`, SIGUSR2 takes CAP_NET_ADMIN from it and from the programs it starts,
 * and SIGWINCH gives it back. Otherwise SIGUSR2 sets the clock 5 h forward, and SIGWINCH then 10 h
 * back.
 */
import { isMainThread } from 'node:worker_threads'
import koffi from 'koffi'

const hourMs = 3_600_000
const netAdmin = 1 << 12
const setSecureBits = 28
/** Programs that root starts get only the rights that they inherit. */
const noRoot = 1
const capabilityVersion3 = 0x20080522

if (isMainThread) {
  if (process.env['RIGHTS'] === '1') changeRights()
  else changeClock()
}

function changeRights(): void {
  const libc = koffi.load(null)
  const capget = libc.func('int capget(void*, void*)')
  const capset = libc.func('int capset(void*, void*)')
  const prctl = libc.func('int prctl(int, ulong, ulong, ulong, ulong)')
  const header = Buffer.alloc(8)
  header.writeUInt32LE(capabilityVersion3)
  const set = (isAllowed: boolean) => {
    const rights = Buffer.alloc(24)
    capget(header, rights)
    const effective = rights.readUInt32LE()
    rights.writeUInt32LE((isAllowed ? effective | netAdmin : effective & ~netAdmin) >>> 0)
    prctl(setSecureBits, isAllowed ? 0 : noRoot, 0, 0, 0)
    capset(header, rights)
  }
  process.on('SIGUSR2', () => set(false))
  process.on('SIGWINCH', () => set(true))
}

function changeClock(): void {
  const RealDate = Date
  let offset = 0
  globalThis.Date = class extends RealDate {
    constructor(...given: [] | ConstructorParameters<DateConstructor>) {
      if (given.length === 0) super(RealDate.now() + offset)
      else super(...given)
    }
    static override now() {
      return RealDate.now() + offset
    }
  } as DateConstructor
  process.on('SIGUSR2', () => (offset += 5 * hourMs))
  process.on('SIGWINCH', () => (offset -= 10 * hourMs))
}
