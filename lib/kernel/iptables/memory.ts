import type { Run } from './command.js'

/** How long an answer counts that hardly ever changes. */
const staysMs = 60_000

interface Kept<Value> {
  readonly value: Value
  readonly atMs: number
}

/** What was found out in the last minute about the node that a `run` works on. */
export class Memory<Value> {
  readonly #byRun = new WeakMap<Run, Map<string, Kept<Value>>>()

  get(run: Run, question: string): Value | undefined {
    const kept = this.#byRun.get(run)?.get(question)
    return kept && performance.now() - kept.atMs < staysMs ? kept.value : undefined
  }

  set(run: Run, question: string, value: Value): void {
    const all = this.#byRun.get(run) ?? new Map<string, Kept<Value>>()
    this.#byRun.set(run, all.set(question, { value, atMs: performance.now() }))
  }
}
