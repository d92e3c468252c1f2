export const protocols = ['TCP', 'UDP', 'SCTP'] as const

export type Protocol = (typeof protocols)[number]

/** Names one port of one Service, which is what a proxy serves (S01). */
export interface ServicePortName {
  readonly namespace: string
  readonly name: string
  /** The port's name, empty for the only port of a Service. */
  readonly port: string
  readonly protocol: Protocol
}

/** `namespace/name:port`, or `namespace/name` for a port without a name. */
export function portNameOf(name: ServicePortName): string {
  const service = `${name.namespace}/${name.name}`
  return name.port === '' ? service : `${service}:${name.port}`
}

/** The key of a service port in a state: `namespace/name:port/PROTOCOL`. */
export function keyOf(name: ServicePortName): string {
  return `${portNameOf(name)}/${name.protocol}`
}

/**
 * The candidate that is most like a mistyped name, or the only one that begins with it; undefined
 * when none is similar. In a name of less than four letters only one may be wrong.
 */
export function nearest(name: string, candidates: readonly string[]): string | undefined {
  const [longer, another] = candidates.filter((each) => each.startsWith(name))
  if (longer !== undefined && another === undefined) return longer
  let best: string | undefined
  let bestDistance = Math.max(name.length < 4 ? 1 : 2, Math.floor(name.length / 4)) + 1
  for (const candidate of candidates) {
    const distance = editDistance(name.toLowerCase(), candidate.toLowerCase(), bestDistance)
    if (distance < bestDistance) {
      best = candidate
      bestDistance = distance
    }
  }
  return best
}

/** The number of insertions, deletions and replacements between two texts, at most `limit`. */
function editDistance(left: string, right: string, limit: number): number {
  if (Math.abs(left.length - right.length) >= limit) return limit
  let row = Array.from({ length: right.length + 1 }, (_, index) => index)
  for (let i = 1; i <= left.length; i++) {
    const next = [i]
    for (let j = 1; j <= right.length; j++) {
      const replaced = (row[j - 1] ?? 0) + (left[i - 1] === right[j - 1] ? 0 : 1)
      next.push(Math.min(replaced, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1))
    }
    row = next
  }
  return row[right.length] ?? limit
}

/** The first names in words, and how many more there are: a cluster may have thousands. */
export function someOf(names: readonly string[], most: number): string {
  const more = names.length - most
  return `${names.slice(0, most).join(', ')}${more > 0 ? ` and ${more} more` : ''}`
}

/** Control characters, and characters that end lines or reorder text. */
const unprintable = /[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu

/**
 * An untrusted text that is safe to print. Control characters and characters that reorder text are
 * written as escapes, so that the text stays on one line and looks as it is.
 */
export function printable(text: string): string {
  return text.replace(unprintable, escaped)
}

/** `1 rule`, `2 rules`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`
}

/** The same JSON, and safe to print: JSON itself escapes only some of these characters. */
export function printableJson(json: string): string {
  return json.replace(unprintable, (character) =>
    character === '\n' || character === '\t' ? character : escaped(character),
  )
}

function escaped(character: string): string {
  const code = character.codePointAt(0) ?? 0
  return character === '\n' ? '\\n' : `\\u${code.toString(16).padStart(4, '0')}`
}
