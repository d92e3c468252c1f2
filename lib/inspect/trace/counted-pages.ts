import { risenIn, type TracedService } from './socket-stories.js'

interface CountedPage {
  readonly page: string
  /** The time when the proxy was asked for it. */
  readonly at: number
}

/**
 * Pages of /metrics of a proxy that carries connections itself. They tell which endpoints got
 * connections, but not which client each connection is of.
 */
export class CountedPages {
  readonly #asked: TracedService
  #pages: CountedPage[] = []

  constructor(asked: TracedService) {
    this.#asked = asked
  }

  add(page: string, at: number): void {
    this.#pages.push({ page, at })
  }

  /**
   * The endpoints of the Service that got connections since this time. Earlier connections are left
   * out if a page was made between them and this time. Times must not go back.
   */
  endpointsSince(at: number): readonly string[] {
    const index = this.#pages.findLastIndex((each) => each.at <= at)
    this.#pages = this.#pages.slice(Math.max(0, index))
    const [first, last] = [this.#pages[0], this.#pages.at(-1)]
    if (!first || !last) return []
    const risen = risenIn(first.page, last.page, 'service_connections_total', this.#asked)
    return [...new Set(risen)]
  }
}
