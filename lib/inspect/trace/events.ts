/** One line of `nft monitor trace`, which is about one packet. */
export type TraceEvent = {
  /** Identifies the packet. */
  readonly id: string
  /** Family and name, such as `ip nat`. */
  readonly table: string
  readonly chain: string
} & (
  | { readonly kind: 'packet'; readonly packet: TracedPacket }
  | { readonly kind: 'rule'; readonly rule: string; readonly verdict: string }
  | { readonly kind: 'end'; readonly verdict: string }
)

/** The packet as it enters a base chain. */
export interface TracedPacket {
  readonly inInterface: string
  readonly outInterface: string
  readonly source: string
  readonly destination: string
  readonly sourcePort: number
  readonly destinationPort: number
}

/** Reads one line; undefined if it is not an event. */
export function parseTraceLine(line: string): TraceEvent | undefined {
  const found = /^trace id (\S+) (\S+ \S+) (\S+) (packet:|rule|verdict|policy) (.*)$/.exec(
    line.trim(),
  )
  if (!found) return undefined
  const [, id = '', table = '', chain = '', kind = '', rest = ''] = found
  const common = { id, table, chain }
  if (kind === 'packet:') return { ...common, kind: 'packet', packet: parsePacket(rest) }
  if (kind !== 'rule') return { ...common, kind: 'end', verdict: rest.trim() }
  const [, rule = rest, verdict = ''] = /^(.*) \(verdict (.*)\)$/.exec(rest) ?? []
  return { ...common, kind: 'rule', rule: withoutCounters(rule), verdict }
}

/** Removes counters, because they say nothing about this packet. */
function withoutCounters(rule: string): string {
  return rule
    .replace(/counter packets \d+ bytes \d+ ?/g, '')
    .replace(/ {2,}/g, ' ')
    .trim()
}

function parsePacket(text: string): TracedPacket {
  const field = (pattern: RegExp) => pattern.exec(text)?.[1] ?? ''
  return {
    inInterface: field(/\biif "([^"]*)"/),
    outInterface: field(/\boif "([^"]*)"/),
    source: field(/\bip6? saddr (\S+)/),
    destination: field(/\bip6? daddr (\S+)/),
    sourcePort: Number(field(/\bsport (\d+)/)),
    destinationPort: Number(field(/\bdport (\d+)/)),
  }
}
