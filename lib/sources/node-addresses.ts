import { networkInterfaces, type NetworkInterfaceInfo } from 'node:os'
import { pause } from '../async.js'
import { parseIp } from '../state/ip.js'

interface NodeAddressesDeps {
  readonly interfaces: () => NodeJS.Dict<NetworkInterfaceInfo[]>
  /** Resolves after `ms`, or at once when the signal comes; never rejects. */
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>
  readonly pollMs: number
  /** Interfaces with virtual addresses of Services, which are not addresses of this node. */
  readonly ignored: readonly string[]
}

const realDeps: NodeAddressesDeps = {
  interfaces: networkInterfaces,
  sleep: pause,
  // One poll costs about 50 µs. kube-proxy does not follow changes at all (L09).
  pollMs: 2000,
  ignored: ['kube-ipvs0', 'kube-portals0'],
}

/** The addresses of this node's interfaces, loopback included, in the order of the interfaces. */
export function nodeAddresses(deps: Partial<NodeAddressesDeps> = {}): readonly string[] {
  const { interfaces, ignored } = { ...realDeps, ...deps }
  const found = new Set<string>()
  for (const [name, addresses] of Object.entries(interfaces())) {
    if (ignored.includes(name)) continue
    for (const { address } of addresses ?? []) {
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
  deps: Partial<NodeAddressesDeps> = {},
): Promise<void> {
  const { sleep, pollMs } = { ...realDeps, ...deps }
  let previous: string | undefined
  while (!signal.aborted) {
    const addresses = readableAddresses(deps)
    const text = addresses?.join() ?? previous
    if (addresses && text !== previous) changed(addresses)
    previous = text
    await sleep(pollMs, signal)
  }
}

/** The addresses of this node; none where the system does not tell them. */
export function nodeAddressesOrNone(): readonly string[] {
  return readableAddresses() ?? []
}

/** Undefined while no file descriptor is left to ask with. The last addresses still hold then. */
function readableAddresses(deps?: Partial<NodeAddressesDeps>): readonly string[] | undefined {
  try {
    return nodeAddresses(deps)
  } catch {
    return undefined
  }
}
