/** Percentiles, in milliseconds. */
export function summarize(times: number[]): { p50: number; p99: number; p999: number } {
  times.sort((a, b) => a - b)
  const at = (share: number) => times[Math.min(times.length - 1, Math.floor(times.length * share))]
  return { p50: at(0.5) ?? NaN, p99: at(0.99) ?? NaN, p999: at(0.999) ?? NaN }
}
