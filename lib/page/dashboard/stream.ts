import { addressOf } from '../../state/ip.js'
import { detailsOf, howToFollow } from '../../observe/flows/text.js'
import { noFlows, type PageView } from '../readers.js'
import type { FlowChoice, FlowView } from '../view.js'
import type { FlowLog, KeptLine } from '../../observe/flows/flow-log.js'

/** Nobody reads more lines at once. */
const shownLines = 100

/** The newest connections that fit the filter of the viewer. `view` reads only new lines. */
export class Stream {
  /** Undefined when the proxy does not follow connections. */
  readonly #log: FlowLog | undefined
  #choice: FlowChoice = { service: '', from: '', verdict: '' }
  #lines = noFlows
  /** The keys of `#lines`, oldest first. */
  #keys: readonly string[] = []
  /** The number of the line that was seen last. */
  #seen = 0

  constructor(log: FlowLog | undefined) {
    this.#log = log
  }

  choose({ service, from, verdict }: FlowChoice): void {
    this.#choice = { service, from, verdict }
    this.#lines = noFlows
    this.#keys = []
    this.#seen = 0
  }

  view(): Pick<PageView, 'flows' | 'stream'> {
    if (!this.#log) {
      const note = `This proxy does not follow connections: ${howToFollow}.`
      return { flows: noFlows, stream: { ...this.#choice, note, leftOut: 0 } }
    }
    const { lines, next, leftOut } = this.#log.find(this.#choice, this.#seen, shownLines)
    this.#seen = next
    this.#add(lines.map(viewOf))
    return { flows: this.#lines, stream: { ...this.#choice, note: '', leftOut } }
  }

  #add(fresh: readonly FlowView[]): void {
    if (fresh.length === 0) return
    const keys = [...this.#keys, ...fresh.map(({ key }) => key)]
    const old = keys.slice(0, -shownLines)
    this.#keys = keys.slice(-shownLines)
    this.#lines = this.#lines.update([
      ...fresh.map((line) => [line.key, line] as const),
      ...old.map((key) => [key, undefined] as const),
    ])
  }
}

function viewOf(line: KeptLine): FlowView {
  const { number, at, client, clientPod, service, protocol, endpoint, endpointPod, verdict } = line
  return {
    ...{ key: String(number), time: new Date(at).toISOString(), client, clientPod, service },
    ...{ protocol, endpoint, endpointPod, verdict, details: detailsOf(line) },
    from: clientPod === '' ? addressOf(client) : clientPod,
  }
}
