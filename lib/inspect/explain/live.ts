import { wholeAddress, wholeChain, type Difference } from '../../modes/difference.js'
import type { Hop, Way } from './packet.js'

/** What the kernel lacks of a plan, and what it has beside it. */
export class LiveCheck {
  readonly #missing = new Map<string, string[]>()
  readonly #extra = new Map<string, string[]>()

  readonly #isAllGone: boolean

  constructor(differences: readonly Difference[]) {
    this.#isAllGone = differences.some(({ where }) => where.startsWith('table '))
    for (const { where, expected, found } of differences) {
      if (expected !== undefined) put(this.#missing, where, expected)
      if (found !== undefined) put(this.#extra, where, found)
    }
  }

  get isClean(): boolean {
    return this.#missing.size + this.#extra.size === 0
  }

  /** Whether a rule or element of the plan is not in the kernel. */
  lacks(place: string, text: string): boolean {
    if (this.#isAllGone) return true
    const missing = this.#missing.get(place) ?? []
    return missing.some((one) => one === text || wholes.has(one) || isSameButPort(one, text))
  }

  /** What to say of a hop; empty when the kernel has just that. */
  notes(hop: Hop): readonly string[] {
    const place = placeOf(hop)
    const lacks = this.lacks(place.where, place.text)
    const extra = this.#extra.get(chainOf(hop) ?? place.where) ?? []
    return [
      ...(lacks ? ['MISSING: the kernel does not have this now'] : []),
      ...extra.map((text) => `NOT OURS: the kernel has here too: ${text}`),
    ]
  }
}

/** Told where a whole chain, table or server is gone, or the address of a listener. */
const wholes: ReadonlySet<string> = new Set([wholeChain, wholeAddress])

function put(map: Map<string, string[]>, key: string, value: string): void {
  map.set(key, [...(map.get(key) ?? []), value])
}

/** Rules of userspace mode name a port that only the running proxy knows. */
function isSameButPort(one: string, text: string): boolean {
  if (!text.includes(proxyPort)) return false
  const escaped = text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
  const port = `(\\d+|${proxyPort}(-LOCAL)?)`
  return new RegExp(`^${escaped.replaceAll(proxyPort, port)}$`).test(one)
}

const proxyPort = 'PROXY-PORT'

/** Where a difference would be told that concerns this hop. */
function placeOf({ where, rule }: Hop): { readonly where: string; readonly text: string } {
  const element = /^element (\S+) \{ (.*) \}$/.exec(rule)
  if (element) return { where: `map ${element[1] ?? ''}`, text: element[2] ?? '' }
  const server = /^-[aA] (-t|-u|--sctp-service) (\S+) (.*)$/.exec(rule)
  if (where === 'IPVS' && server) {
    const protocol = { '-t': 'TCP', '-u': 'UDP' }[server[1] ?? ''] ?? 'SCTP'
    return { where: `virtual server ${server[2] ?? ''}/${protocol}`, text: server[3] ?? '' }
  }
  return { where: chainOf({ where }) ?? where, text: rule }
}

/** The chain a hop is in, as a difference tells it; undefined outside of chains. */
function chainOf({ where }: Pick<Hop, 'where'>): string | undefined {
  if (where === 'IPVS') return undefined
  const path = where.split(' > ')
  const last = path.at(-1) ?? ''
  const [table = '', chain] = (path[0] ?? '').split(' ')
  if (chain === undefined) return `chain ${last}`
  return path.length === 1 ? where : `${table} ${last}`
}

/** Every hop with what the kernel says about it. */
export function annotate(ways: readonly Way[], live: LiveCheck): readonly Way[] {
  return ways.map((way) => ({
    ...way,
    hops: way.hops.map((hop) => {
      const notes = live.notes(hop)
      return notes.length === 0 ? hop : { ...hop, notes }
    }),
  }))
}
