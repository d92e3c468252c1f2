import type { Log, ModeContext, SocketConnection } from '../mode.js'
import type { CountedLists } from './counted-lists.js'
import { readFlow } from './flow-layout.js'
import type { OpenFlowMaps } from './flow-maps.js'
import { lookUntil } from './looks.js'

/** The most connections to pass on at one look. More are only counted: the stream takes fewer. */
export const mostPerLook = 256

interface SocketFlowsDeps {
  readonly noted: Pick<OpenFlowMaps, 'read' | 'lostSoFar'>
  /** The target lists of the present plans. */
  readonly lists: () => CountedLists
  readonly translated: NonNullable<ModeContext['translated']>
  readonly log: Log
}

/**
 * Reports TCP connections that were translated at their socket, one by one: when they open, and
 * when they end or fail.
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
