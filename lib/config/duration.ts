/** Durations as Go writes them (`1h30m`, `250ms`), as milliseconds. */

const unitMs: Readonly<Record<string, number>> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  μs: 1e-3,
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
}

const part = new RegExp(String.raw`(\d+(?:\.\d*)?|\.\d+)(${Object.keys(unitMs).join('|')})`, 'y')

/** undefined unless the whole text is a duration. `0` is one, `5` is not. */
export function parseDuration(text: string): number | undefined {
  const unsigned = text.replace(/^[+-]/, '')
  const sign = text.startsWith('-') ? -1 : 1
  if (unsigned === '0') return 0
  let total = 0
  let index = 0
  while (index < unsigned.length) {
    part.lastIndex = index
    const match = part.exec(unsigned)
    if (!match) return undefined
    total += Number(match[1]) * (unitMs[match[2] ?? ''] ?? Number.NaN)
    index = part.lastIndex
  }
  return index > 0 && Number.isFinite(total) ? sign * total : undefined
}

/** The duration as Go prints it: `1h0m0s`, `1m30s`, `250ms`, `0s`. */
export function formatDuration(ms: number): string {
  if (ms === 0) return '0s'
  if (ms < 0) return `-${formatDuration(-ms)}`
  if (ms < 1e-3) return `${trim(ms * 1e6)}ns`
  if (ms < 1) return `${trim(ms * 1e3)}µs`
  if (ms < 1000) return `${trim(ms)}ms`
  const hours = Math.floor(ms / 3_600_000)
  const minutes = Math.floor((ms % 3_600_000) / 60_000)
  const seconds = `${trim((ms % 60_000) / 1000)}s`
  if (hours > 0) return `${hours}h${minutes}m${seconds}`
  return minutes > 0 ? `${minutes}m${seconds}` : seconds
}

function trim(value: number): string {
  return String(Number(value.toFixed(9)))
}
