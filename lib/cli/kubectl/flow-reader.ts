import { askAll, type Asked, type RemoteProxy } from './proxies.js'
import { howToFollow } from '../../observe/flows/text.js'
import { SourceError } from '../../errors.js'
import { flowsAnswerIn, FlowsFollower, type FlowRecord } from '../../observe/flows/answer.js'

/** A connection, and the node whose proxy reported it. */
export interface RemoteFlow extends FlowRecord {
  readonly node: string
}

export interface RemoteFlows {
  readonly flows: readonly RemoteFlow[]
  /** How many lines the proxies have left out since the last call. */
  readonly leftOut: number
}

/** Reads the streams of several proxies. Each call goes on where the last one ended. */
export class FlowReader {
  readonly #query: URLSearchParams
  readonly #followers = new Map<string, FlowsFollower>()

  constructor(query: URLSearchParams) {
    this.#query = query
  }

  /** The new lines of each proxy, the oldest first. */
  async read(proxies: readonly RemoteProxy[]): Promise<readonly Asked<RemoteFlows>[]> {
    return askAll(proxies, async (proxy) => this.#readOne(proxy))
  }

  async #readOne(proxy: RemoteProxy): Promise<RemoteFlows> {
    const follower = this.#followers.get(proxy.pod) ?? new FlowsFollower(this.#query)
    this.#followers.set(proxy.pod, follower)
    const answer = flowsAnswerIn(await this.#ask(proxy, follower.query()))
    if (!answer) throw new SourceError(`${proxy.name} answers /flows with something else`)
    return {
      flows: answer.flows.map((flow) => ({ ...flow, node: proxy.node })),
      leftOut: follower.take(answer),
    }
  }

  async #ask(proxy: RemoteProxy, query: string): Promise<string> {
    try {
      return await proxy.get(`/flows?${query}`)
    } catch (error) {
      if (!(error instanceof SourceError) || !isNotFound(error.message)) throw error
      throw new SourceError(`${proxy.name} does not follow connections; ${howToFollow}`, {
        cause: error,
      })
    }
  }
}

/** A proxy has no such page. A pod that is gone has an object of the API in its answer. */
const isNotFound = (message: string) => /could not find the requested resource/.test(message)

/** Lines of several nodes, by time. */
export const byTime = (one: RemoteFlow, other: RemoteFlow) => (one.time < other.time ? -1 : 1)
