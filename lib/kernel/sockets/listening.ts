import { readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { ipFamilies, type IpFamily } from '../../state/ip.js'
import { addressText } from '../addresses.js'
import { isLittleEndian } from '../netlink/protocol.js'

/** A socket that waits for connections or datagrams. */
export interface ListeningSocket {
  readonly protocol: 'tcp' | 'udp'
  readonly ip: string
  readonly port: number
}

/** The state of a TCP socket that waits for connections. */
const listenState = '0A'

/**
 * States of TCP sockets that no process holds, and that still send their last bytes or their end.
 */
const farewellStates: ReadonlySet<string> = new Set(['04', '09', '0B'])
const farewellPatienceMs = 1000
const farewellPauseMs = 50

/** The sockets that listen in this network namespace. */
export async function listeningSockets(): Promise<readonly ListeningSocket[]> {
  const sockets: ListeningSocket[] = []
  for (const protocol of ['tcp', 'udp'] as const) {
    for (const { family, address, port, state } of await readSockets(protocol)) {
      if (port > 0 && (protocol === 'udp' || state === listenState)) {
        sockets.push({ protocol, ip: addressOf(family, address), port })
      }
    }
  }
  return sockets
}

/**
 * Resolves when clients of these ports know that their connections have ended, or after a second.
 */
export async function farewellsSent(ports: ReadonlySet<number>): Promise<void> {
  const until = performance.now() + farewellPatienceMs
  while (performance.now() < until) {
    const sockets = await readSockets('tcp')
    if (!sockets.some(({ port, state }) => farewellStates.has(state) && ports.has(port))) return
    await sleep(farewellPauseMs)
  }
}

interface SocketLine {
  readonly family: IpFamily
  readonly address: string
  readonly port: number
  readonly state: string
}

async function readSockets(protocol: 'tcp' | 'udp'): Promise<readonly SocketLine[]> {
  const sockets: SocketLine[] = []
  for (const family of ipFamilies) {
    const file = `/proc/thread-self/net/${protocol}${family === 'IPv6' ? '6' : ''}`
    const text = await readFile(file, 'utf8').catch(() => '')
    for (const line of text.split('\n').slice(1)) {
      const [, local = '', , state = ''] = line.trim().split(/\s+/)
      const [address = '', portText = ''] = local.split(':')
      sockets.push({ family, address, port: Number.parseInt(portText, 16), state })
    }
  }
  return sockets
}

/** The kernel prints an address as words of 32 bits in the byte order of this machine. */
function addressOf(family: IpFamily, hex: string): string {
  const bytes = Buffer.from(hex, 'hex')
  return addressText(family, isLittleEndian ? bytes.swap32() : bytes)
}
