import type { Log, ModeContext, SocketConnection } from '../mode.js'
import type { CountedLists } from './counted-lists.js'
import { readFlow } from './flow-layout.js'
import type { OpenFlowMaps } from './flow-maps.js'
import { lookUntil } from './looks.js'

/** The stream takes fewer in a second; what is more at one look is only counted. */
export const mostPerLook = 256

interface SocketFlowsDeps {
  readonly noted: Pick<OpenFlowMaps, 'read' | 'lostSoFar'>
  /** Of the plans as they are now. */
  readonly lists: () => CountedLists
  readonly translated: NonNullable<ModeContext['translated']>
  readonly log: Log
}

/**
 * Tells of TCP connections that were translated at their socket, one by one: when they are opened,
 * and what they were when they are over.
 */
export class SocketFlows {
  readonly #deps: SocketFlowsDeps
  #lostBefore = 0

  constructor(deps: SocketFlowsDeps) {
    this.#deps = deps
  }

  run(signal: AbortSignal): Promise<void> {
    const failed = 'could not look at connections of sockets'
    return lookUntil(signal, () => this.tell(), { log: this.#deps.log, failed })
  }

  tell(): void {
    const lists = this.#deps.lists()
    const connections: SocketConnection[] = []
    let count = 0
    const noted = this.#deps.noted.read((records, start, end) => {
      if (++count > mostPerLook) return
      const connection = connectionIn(records.subarray(start, end), lists)
      if (connection) connections.push(connection)
    })
    const leftOut = noted - connections.length + this.#takeLost()
    if (connections.length + leftOut > 0) this.#deps.translated(connections, leftOut)
  }

  #takeLost(): number {
    const lost = this.#deps.noted.lostSoFar()
    const more = Math.max(0, lost - this.#lostBefore)
    this.#lostBefore = lost
    return more
  }
}

/** Undefined for a Service that no plan has any more. */
function connectionIn(bytes: Buffer, lists: CountedLists): SocketConnection | undefined {
  const noted = readFlow(bytes)
  if (!noted) return undefined
  const { id, ...connection } = noted
  const labels = lists.labelsOf({ id, endpoint: connection.endpoint })
  return labels && { service: labels.service, ...connection }
}
