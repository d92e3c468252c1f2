import { putAddress } from '../../kernel/addresses.js'
import type { BpfMap } from '../../kernel/bpf/map.js'
import type { IpFamily } from '../../state/ip.js'
import { familyNumbers, openKey, type Target } from './layout.js'
import type { SocketPlan } from './plan.js'

/**
 * Time between two looks. Meanwhile an endpoint that is gone takes one of many places in the map.
 */
const periodMs = 30_000

interface OpenCountsDeps {
  /** The map `open` as it is now. */
  readonly map: () => Pick<BpfMap, 'entries' | 'delete'>
  readonly plans: () => readonly SocketPlan[]
}

/**
 * Deletes the counts of open connections of endpoints that are gone. A count is deleted if at two
 * looks it was 0 and its endpoint was in no plan. Then no program that still runs can use it.
 */
export class OpenCounts {
  readonly subject = 'counts of connections'
  readonly everyMs = periodMs
  /** Between two looks every program that was running has ended. */
  readonly looksAtEnd = false
  readonly #deps: OpenCountsDeps
  #gone = new Set<string>()

  constructor(deps: OpenCountsDeps) {
    this.#deps = deps
  }

  /** Forgets the counts of endpoints that are gone. */
  look(): void {
    const map = this.#deps.map()
    const plans = this.#deps.plans()
    // Before the first sync nobody knows which endpoints are gone.
    if (plans.length === 0) return
    const entries = map.entries()
    if (entries.length === 0) return
    const used = usedBy(plans)
    const before = this.#gone
    this.#gone = new Set()
    for (const [key, value] of entries) {
      const endpoint = key.toString('hex', 0, openKey.protocol)
      if (value.readBigInt64LE(0) !== 0n || used.has(endpoint)) continue
      if (before.has(endpoint)) map.delete(key)
      else this.#gone.add(endpoint)
    }
  }
}

/** Endpoints that a program may choose by their counts, without their protocol. */
function usedBy(plans: readonly SocketPlan[]): ReadonlySet<string> {
  const used = new Set<string>()
  for (const { family, parts } of plans) {
    for (const { targets } of parts.values()) {
      for (const { draw, endpoints } of targets) {
        if (draw !== 'fewest') continue
        for (const endpoint of endpoints) used.add(keyOf(family, endpoint).toString('hex'))
      }
    }
  }
  return used
}

function keyOf(family: IpFamily, { ip, port }: Target): Buffer {
  const key = Buffer.alloc(openKey.protocol)
  putAddress(key, openKey.address, family, ip)
  key.writeUInt16BE(port, openKey.port)
  key.writeUInt8(familyNumbers[family], openKey.family)
  return key
}
