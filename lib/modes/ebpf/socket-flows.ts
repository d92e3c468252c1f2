import type { ModeContext, SocketFlow } from '../mode.js'
import type { CountedLists } from './counted-lists.js'
import { readFlow } from './flow-layout.js'
import type { OpenFlowMaps } from './flow-maps.js'

/** The most connections to pass on at one look. More are only counted: the stream takes fewer. */
export const mostPerLook = 256

interface SocketFlowsDeps {
  readonly noted: Pick<OpenFlowMaps, 'read' | 'lostSoFar'>
  /** The target lists of the present plans. */
  readonly lists: () => CountedLists
  readonly translated: NonNullable<ModeContext['translated']>
}

/**
 * Reports what was translated at its socket, one by one: TCP connections when they open, and when
 * they end or fail; UDP clients when they first send to a Service.
 */
export class SocketFlows {
  readonly subject = 'connections of sockets'
  readonly everyMs = 250
  readonly looksAtEnd = true
  readonly #deps: SocketFlowsDeps
  #lostBefore = 0

  constructor(deps: SocketFlowsDeps) {
    this.#deps = deps
  }

  look(): void {
    const lists = this.#deps.lists()
    const flows: SocketFlow[] = []
    let count = 0
    const noted = this.#deps.noted.read((records, start, end) => {
      if (++count > mostPerLook) return
      const flow = flowIn(records.subarray(start, end), lists)
      if (flow) flows.push(flow)
    })
    const leftOut = noted - flows.length + this.#takeLost()
    if (flows.length + leftOut > 0) this.#deps.translated(flows, leftOut)
  }

  #takeLost(): number {
    const lost = this.#deps.noted.lostSoFar()
    const more = Math.max(0, lost - this.#lostBefore)
    this.#lostBefore = lost
    return more
  }
}

/** Undefined for a Service that no plan has any more. */
function flowIn(bytes: Buffer, lists: CountedLists): SocketFlow | undefined {
  const noted = readFlow(bytes)
  if (!noted) return undefined
  const { id, flow } = noted
  const labels = lists.labelsOf({ id, endpoint: flow.endpoint })
  return labels && { service: labels.service, ...flow }
}
