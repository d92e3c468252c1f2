import type { BpfMap } from '../../kernel/bpf/map.js'
import { hostPort } from '../../state/ip.js'
import type { ModeContext, RefusedCall } from '../mode.js'
import type { CountedLists } from './counted-lists.js'
import { keptRefusals, number32, readRefusal, refusal } from './layout.js'

interface RefusedCallsDeps {
  readonly map: Pick<BpfMap, 'lookup'>
  /** The target lists of the present plans. */
  readonly lists: () => CountedLists
  readonly refused: NonNullable<ModeContext['refused']>
}

/**
 * Reports calls that programs refused, one by one. The programs keep only the newest calls. The
 * statistics count all of them.
 */
export class RefusedCalls {
  readonly subject = 'refused calls'
  readonly everyMs = 250
  readonly looksAtEnd = true
  readonly #deps: RefusedCallsDeps
  /** How many calls were reported. Those that were refused before the start count as reported. */
  #told: number

  constructor(deps: RefusedCallsDeps) {
    this.#deps = deps
    this.#told = this.#refusedSoFar()
  }

  look(): void {
    const now = this.#refusedSoFar()
    if (now === this.#told) return
    const lists = this.#deps.lists()
    const calls: RefusedCall[] = []
    for (let number = Math.max(this.#told, now - keptRefusals); number < now; number++) {
      const call = this.#call(number, lists)
      if (call) calls.push(call)
    }
    this.#deps.refused(calls, now - this.#told - calls.length)
    this.#told = now
  }

  /** Undefined if a newer call has taken the place, or if the entry is not complete. */
  #call(number: number, lists: CountedLists): RefusedCall | undefined {
    const bytes = this.#deps.map.lookup(number32(1 + (number % keptRefusals)))
    if (!bytes || numberIn(bytes) !== number + 1) return undefined
    const { id, ip, port, protocol, process } = readRefusal(bytes)
    const labels = lists.labelsOf({ id, endpoint: '' })
    return labels && { service: labels.service, protocol, address: hostPort(ip, port), process }
  }

  #refusedSoFar(): number {
    const bytes = this.#deps.map.lookup(number32(0))
    return bytes ? numberIn(bytes) : 0
  }
}

const numberIn = (bytes: Buffer) => Number(bytes.readBigUInt64LE(refusal.number))
