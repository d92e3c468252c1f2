/**
 * A result of a benchmark, which is a line of docs/benchmarks.md. A benchmark also prints tables of
 * its own; results are the numbers to compare with those of another day.
 */
export interface BenchResult {
  /** What was measured, in words that stay the same from run to run. */
  readonly name: string
  readonly value: number
  /** `ms`, `MiB`, `/s`; `x` for a ratio. */
  readonly unit: string
  /** In the unit of the value, such as `<= 15`; missing where nothing was promised. */
  readonly target?: string
  /** What one has to know to read the number rightly. */
  readonly note?: string
}

export type BenchResults = readonly BenchResult[]

/** Whether a value keeps its target; undefined without one. */
export function keepsTarget({ value, target }: BenchResult): boolean | undefined {
  const [, comparison, limit] = /^(<=|>=) ([\d.]+)$/.exec(target ?? '') ?? []
  if (comparison === undefined) {
    if (target === undefined) return undefined
    throw new Error(`a target is "<= 15" or ">= 0.5", not ${JSON.stringify(target)}`)
  }
  // A missing number, which is null in JSON, keeps no target.
  if (!Number.isFinite(value)) return false
  return comparison === '<=' ? value <= Number(limit) : value >= Number(limit)
}

/** A value without digits that mean nothing. */
export function valueText(value: number): string {
  if (!Number.isFinite(value)) return 'none'
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en-US')
  return String(Number(value.toPrecision(3)))
}
