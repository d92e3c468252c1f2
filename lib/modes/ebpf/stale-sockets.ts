import { readlinkSync } from 'node:fs'
import { pause, Turns } from '../../async.js'
import { messageOf } from '../../errors.js'
import type { BpfMap } from '../../kernel/bpf/map.js'
import { inNamespacesOf, mayEnterNamespaces } from '../../kernel/network-namespaces.js'
import { destroysSockets, ListedSockets, type ListedSocket } from '../../kernel/listed-sockets.js'
import { ipFamilies, type IpFamily } from '../../state/ip.js'
import type { Log } from '../mode.js'
import type { SocketsApplied } from './apply.js'
import { listsAsked, type Asked } from './asked-addresses.js'
import { familyNumbers, memberKeyOf, udpSocket, wordsOf } from './layout.js'
import type { SocketPlan } from './plan.js'

/**
 * Time to a second look. A program that chose an endpoint before it went notes the socket until
 * then.
 */
const secondLookMs = 1000

/** The most network namespaces to look at together, because each needs descriptors. */
const atOnce = 128

interface StaleSocketsDeps {
  /** The map `udpSockets`. */
  readonly noted: Pick<BpfMap, 'entries' | 'delete'>
  /** The map `members` of a family as it is now. */
  readonly members: (family: IpFamily) => Pick<BpfMap, 'lookup'>
  /** What the maps of a family hold; undefined while nobody knows. */
  readonly plan: (family: IpFamily) => SocketPlan | undefined
  readonly log: Log
}

interface Noted {
  readonly key: Buffer
  readonly cookie: bigint
  readonly namespace: bigint
  /** The address of the endpoint: 4 or 16 bytes in network order. */
  readonly address: Buffer
  readonly port: number
  readonly family: IpFamily
  /** The number of the target list. */
  readonly id: number
  readonly asked: Asked
}

/**
 * Ends connected UDP sockets whose endpoint is gone, and those whose Service gave up the address
 * that they asked for. The program that uses such a socket gets an error and opens another one,
 * instead of sending to nobody. Before a socket is ended, the kernel is asked whether the socket
 * with this cookie really is connected to the endpoint.
 */
export class StaleSockets {
  readonly #deps: StaleSocketsDeps
  readonly #turns = new Turns()
  #isSecondLookDue = false

  constructor(deps: StaleSocketsDeps) {
    this.#deps = deps
  }

  /**
   * Looks at all noted sockets. Before that it forgets those that were closed while no program saw
   * it. Resolves to how many it ended; never rejects.
   */
  sweep({ hasMissed }: Pick<SocketsApplied, 'hasMissed'>): Promise<number> {
    this.#isSecondLookDue = true
    return this.#turns.take(async () => {
      if (hasMissed) await this.#forgetClosed()
      return this.#sweepNow()
    })
  }

  async run(signal: AbortSignal): Promise<void> {
    for (;;) {
      await pause(secondLookMs, signal)
      if (signal.aborted) break
      if (!this.#isSecondLookDue) continue
      this.#isSecondLookDue = false
      await this.#turns.take(() => this.#sweepNow())
    }
    await this.#turns.idle()
  }

  async #sweepNow(): Promise<number> {
    try {
      const stale = this.#stale()
      let ended = 0
      await visitSockets(stale, (namespace, there, sockets) => {
        const own = stale.filter((each) => each.namespace === namespace)
        ended += this.#endAll(own, there, sockets)
      })
      return ended
    } catch (error) {
      this.#deps.log.warn({ error: messageOf(error) }, 'stale UDP sockets could not be ended')
      return 0
    }
  }

  /** A socket is closed if no namespace has it. Nobody is in a namespace that is not found. */
  async #forgetClosed(): Promise<void> {
    try {
      const noted = this.#deps.noted.entries().map(([key, value]) => ({
        key,
        cookie: key.readBigUInt64LE(0),
        namespace: value.readBigUInt64LE(udpSocket.namespace),
      }))
      const open = new Set<bigint>()
      await visitSockets(noted, (_, there) => {
        for (const cookie of there.keys()) open.add(cookie)
      })
      for (const { key, cookie } of noted) if (!open.has(cookie)) this.#deps.noted.delete(key)
    } catch (error) {
      this.#deps.log.warn({ error: messageOf(error) }, 'could not look for closed UDP sockets')
    }
  }

  /** The noted sockets whose endpoint is not where the address that they asked for leads now. */
  #stale(): readonly Noted[] {
    const all = this.#deps.noted.entries().map(readNoted)
    const ports = new Set(all.map(({ asked }) => asked.port))
    return ipFamilies.flatMap((family) => {
      const ofFamily = all.filter((noted) => noted.family === family)
      const plan = this.#deps.plan(family)
      if (!plan || ofFamily.length === 0) return []
      const leadsTo = listsAsked(plan, ports)
      const members = this.#deps.members(family)
      return ofFamily.filter((noted) => {
        const lists = noted.asked.port === 0 ? [noted.id] : leadsTo(noted.asked)
        return !lists.some((id) => members.lookup(memberKeyOfNoted(id, noted)))
      })
    })
  }

  #endAll(
    stale: readonly Noted[],
    there: ReadonlyMap<bigint, ListedSocket>,
    sockets: Pick<ListedSockets, 'destroy'>,
  ): number {
    let ended = 0
    for (const noted of stale) {
      const socket = there.get(noted.cookie)
      if (!socket || !isConnectedTo(socket, noted)) continue
      // The entry is deleted first: the socket may connect again at any moment, and is noted anew.
      this.#deps.noted.delete(noted.key)
      if (sockets.destroy(socket)) ended++
    }
    return ended
  }
}

type VisitSockets = (
  namespace: bigint,
  there: ReadonlyMap<bigint, ListedSocket>,
  sockets: ListedSockets,
) => void

/** Visits the UDP sockets of the network namespaces that these are in, by their cookies. */
async function visitSockets(
  noted: readonly Pick<Noted, 'namespace'>[],
  visit: VisitSockets,
): Promise<void> {
  const all = [...new Set(noted.map(({ namespace }) => namespace))]
  for (let from = 0; from < all.length; from += atOnce) {
    const some = new Set(all.slice(from, from + atOnce))
    const opened = inNamespacesOf(some, () => new ListedSockets('UDP'))
    try {
      for (const [namespace, sockets] of opened) {
        const there = new Map<bigint, ListedSocket>()
        for (const family of ipFamilies) {
          for (const socket of await sockets.list(family)) there.set(socket.cookie, socket)
        }
        visit(namespace, there, sockets)
      }
    } finally {
      for (const sockets of opened.values()) sockets.close()
    }
  }
}

/** An IPv6 socket has the address of an IPv4 peer in the last four bytes. */
function isConnectedTo({ peer, peerPort }: ListedSocket, { address, port }: Noted): boolean {
  return peerPort === port && peer.subarray(peer.length - address.length).equals(address)
}

function readNoted([key, value]: readonly [key: Buffer, value: Buffer]): Noted {
  const family = value.readUInt32LE(udpSocket.family) === familyNumbers.IPv4 ? 'IPv4' : 'IPv6'
  return {
    key,
    cookie: key.readBigUInt64LE(0),
    namespace: value.readBigUInt64LE(udpSocket.namespace),
    address: value.subarray(udpSocket.address, udpSocket.address + 4 * wordsOf(family)),
    port: value.readUInt16BE(udpSocket.port),
    family,
    id: value.readUInt32LE(udpSocket.id),
    asked: {
      address: value.readUInt32LE(udpSocket.askedAddress),
      port: value.readUInt16BE(udpSocket.askedPort),
    },
  }
}

function memberKeyOfNoted(id: number, { family, address, port }: Noted): Buffer {
  const layout = memberKeyOf(family)
  const key = Buffer.alloc(layout.bytes)
  key.writeUInt32LE(id, layout.id)
  key.set(address, layout.address)
  key.writeUInt16BE(port, layout.port)
  return key
}

/** Only in this PID namespace `/proc` shows the processes of the whole machine. */
const firstProcessNamespace = 'pid:[4026531836]'

/**
 * Why sockets of pods cannot be ended here; undefined if they can. If they cannot, connected UDP
 * sockets are left to packets, which can move to another endpoint while the socket stays.
 */
export function whyNotEnding(): string | undefined {
  if (readlinkSync('/proc/self/ns/pid') !== firstProcessNamespace) {
    return 'the processes of the machine cannot be seen (hostPID)'
  }
  if (!mayEnterNamespaces()) return 'network namespaces may not be entered (CAP_SYS_ADMIN)'
  return destroysSockets() ? undefined : 'this kernel does not destroy UDP sockets on request'
}
