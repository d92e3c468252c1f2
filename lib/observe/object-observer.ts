import type { Identity, NodeObject } from '../state/objects.js'
import type { Log, Meter } from '../modes/mode.js'
import type { ObjectKind } from '../sources/source.js'
import type { Observation } from './observation.js'

export interface ObjectObserverOptions {
  readonly log: Log
  readonly meter: Meter
  readonly observation: Pick<Observation, 'malformed' | 'nodeChanged'>
  readonly now: () => number
}

/** While the API server is away, four lists fail every few seconds. Each is logged this often. */
const repeatedFailureMs = 30_000

/** Turns what happens to objects on their way to the tracker into log lines, metrics and events. */
export class ObjectObserver {
  readonly #options: ObjectObserverOptions
  readonly #isNew: (text: string) => boolean

  constructor(options: ObjectObserverOptions) {
    this.#options = options
    this.#isNew = repeatFilter({ forMs: repeatedFailureMs, now: options.now })
  }

  malformed(kind: ObjectKind, identity: Identity, reason: string): void {
    const { log, meter, observation } = this.#options
    meter.count('malformed_objects_total', { kind })
    log.warn({ kind, ...identity, reason }, 'object makes no sense and is skipped')
    observation.malformed(kind, identity, reason)
  }

  warned(kind: ObjectKind, { namespace, name }: Identity, warning: string): void {
    this.#options.log.warn({ kind, namespace, name, warning }, 'part of an object is left out')
  }

  nodeChanged(node: NodeObject | undefined): void {
    this.#options.observation.nodeChanged(node)
  }

  failed(message: string): void {
    const { log } = this.#options
    const text = 'source of objects failed, will retry'
    if (this.#isNew(message)) log.warn({ reason: message }, text)
    else log.debug({ reason: message }, text)
  }
}

/** Tells whether a text is new: not given within the last `forMs`. */
export function repeatFilter(options: {
  readonly forMs: number
  readonly now: () => number
}): (text: string) => boolean {
  const givenAt = new Map<string, number>()
  return (text) => {
    const now = options.now()
    for (const [given, at] of givenAt) if (now - at >= options.forMs) givenAt.delete(given)
    if (givenAt.has(text)) return false
    givenAt.set(text, now)
    return true
  }
}
