import { networkInterfaces } from 'node:os'
import { pause } from '../async.js'
import type { Links } from '../kernel/links.js'
import { isLinux } from '../platform.js'
import { ipFamilies, parseIp } from '../state/ip.js'

/**
 * Reads the addresses of this node's interfaces, loopback included, in the order of the interfaces.
 * Undefined where the system does not tell them, as while no file descriptor is left to ask with.
 */
export type ReadAddresses = () => Promise<readonly string[] | undefined>

interface Following {
  readonly read: ReadAddresses
  /** What was read last. */
  readonly known: readonly string[] | undefined
  /** Resolves after `ms`, or at once when the signal comes; never rejects. */
  readonly sleep?: (ms: number, signal: AbortSignal) => Promise<void>
}

/** One poll costs about half a millisecond. kube-proxy does not follow changes at all (L09). */
const pollMs = 2000

/** Interfaces with virtual addresses of Services, which are not addresses of this node. */
const ignored = ['kube-ipvs0', 'kube-portals0']

/**
 * The kernel is asked itself: `networkInterfaces` leaves out interfaces without a carrier, and their
 * addresses are still local. Where koffi does not load, that list has to do.
 */
export async function addressReader(): Promise<ReadAddresses> {
  const ofInterfaces = () => Promise.resolve(interfaceAddresses())
  if (!isLinux()) return ofInterfaces
  try {
    const { Links } = await import('../kernel/links.js')
    return () => addressesOf(() => new Links()).catch(() => undefined)
  } catch {
    return ofInterfaces
  }
}

async function addressesOf(open: () => Links): Promise<readonly string[]> {
  const links = open()
  try {
    const without = new Set(ignored.map((name) => links.find(name)))
    const found = new Set<string>()
    for (const family of ipFamilies) {
      for (const text of await links.addresses(family, { without })) found.add(text)
    }
    return [...found]
  } finally {
    links.close()
  }
}

/** The addresses of the interfaces that are up and have a carrier. */
export function interfaceAddresses(interfaces = networkInterfaces): readonly string[] | undefined {
  let all: ReturnType<typeof interfaces>
  try {
    all = interfaces()
  } catch {
    return undefined
  }
  const found = new Set<string>()
  for (const [name, addresses = []] of Object.entries(all)) {
    if (ignored.includes(name)) continue
    for (const { address } of addresses) {
      const ip = parseIp(address)
      if (ip) found.add(ip.text)
    }
  }
  return [...found]
}

/** Calls `changed` after every change of what is known, until the signal. */
export async function followNodeAddresses(
  changed: (addresses: readonly string[]) => void,
  signal: AbortSignal,
  { read, known, sleep = pause }: Following,
): Promise<void> {
  let previous = known?.join()
  for (;;) {
    await sleep(pollMs, signal)
    if (signal.aborted) return
    // The last addresses still hold while the system does not tell them.
    const addresses = await read()
    const text = addresses?.join() ?? previous
    if (addresses && text !== previous) changed(addresses)
    previous = text
  }
}
