import { ConfigError } from '../errors.js'

/** Where a value is set, for messages and for /configz. */
export type Origin =
  | { readonly from: 'default' }
  | { readonly from: 'flag'; readonly flag: string }
  | { readonly from: 'file'; readonly file: string; readonly line: number }

export interface Setting {
  readonly value: unknown
  readonly origin: Origin
}

/** By path; only values that are set. */
export type Settings = ReadonlyMap<string, Setting>

/** `kube-proxy.yaml:12: iptables.syncPeriod` or `--iptables-sync-period`. */
export function placeOf(path: string, origin: Origin | undefined): string {
  if (origin?.from === 'file') return `${origin.file}:${origin.line}: ${path}`
  return origin?.from === 'flag' ? `--${origin.flag}` : path
}

/** `file:line`, `--flag` or `default`. */
export function originText(origin: Origin | undefined): string {
  if (origin?.from === 'file') return `${origin.file}:${origin.line}`
  return origin?.from === 'flag' ? `--${origin.flag}` : 'default'
}

/** A value as JSON, cut to fit on one line. */
export function quote(value: unknown): string {
  const text = value === undefined ? 'undefined' : JSON.stringify(value)
  return text.length > 80 ? `${text.slice(0, 77)}…` : text
}

/** Throws all problems as one ConfigError, so that they can be corrected together. */
export function throwProblems(problems: readonly string[]): void {
  if (problems.length > 0) throw new ConfigError(problems.join('\n'))
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
