import { networkInterfaces, type NetworkInterfaceInfo } from 'node:os'
import { pause } from '../async.js'
import { parseIp } from '../state/ip.js'

interface NodeAddressesDeps {
  readonly interfaces: () => NodeJS.Dict<NetworkInterfaceInfo[]>
  /** Resolves after `ms`, or at once when the signal comes; never rejects. */
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>
}

/** One poll costs about 50 µs. kube-proxy does not follow changes at all (L09). */
const pollMs = 2000

/** Interfaces with virtual addresses of Services, which are not addresses of this node. */
const ignored = ['kube-ipvs0', 'kube-portals0']

/**
 * The addresses of this node's interfaces, loopback included, in the order of the interfaces.
 * Undefined where the system does not tell them, as while no file descriptor is left to ask with.
 */
export function nodeAddresses(interfaces = networkInterfaces): readonly string[] | undefined {
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

/** Calls `changed` at once and after every change, until the signal. */
export async function followNodeAddresses(
  changed: (addresses: readonly string[]) => void,
  signal: AbortSignal,
  { interfaces, sleep }: NodeAddressesDeps = { interfaces: networkInterfaces, sleep: pause },
): Promise<void> {
  let previous: string | undefined
  while (!signal.aborted) {
    // The last addresses still hold while the system does not tell them.
    const addresses = nodeAddresses(interfaces)
    const text = addresses?.join() ?? previous
    if (addresses && text !== previous) changed(addresses)
    previous = text
    await sleep(pollMs, signal)
  }
}
