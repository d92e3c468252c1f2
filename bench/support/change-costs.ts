/** What a ruleset costs: until it stands, and to change one endpoint of it. */
export interface ChangeCosts {
  readonly startMs: number
  readonly p50Ms: number
  readonly p99Ms: number
  /** CPU a change. */
  readonly cpuMs: number
  readonly memoryMib: number
}
