/** The costs of a ruleset: to write it at the start, and to change one endpoint. */
export interface ChangeCosts {
  readonly startMs: number
  readonly p50Ms: number
  readonly p99Ms: number
  /** CPU time of one change. */
  readonly cpuMs: number
  readonly memoryMib: number
}
