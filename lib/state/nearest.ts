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
