import { Worker } from 'node:worker_threads'
import { KernelError } from '../../errors.js'
import { usualPatienceMs } from './agent-protocol.js'
import type {
  AgentPlace,
  AgentAnswer,
  AgentCommand,
  AgentNews,
  Answered,
  FlowRequest,
  FlowResult,
  NumberedCommand,
  ServeRequest,
} from './agent-protocol.js'
import type { StrayRequest } from './stray-segment.js'

/** Serves as a backend and makes connections as a client, at one place. */
export interface Agent {
  /** Runs the conversations of a request. A failure in the network is a result, not a rejection. */
  flow(request: FlowRequest): Promise<readonly FlowResult[]>
  /** Sends once more on a connection kept by `keepAs`. */
  send(id: string, timeoutMs?: number): Promise<FlowResult>
  /** Closes a kept connection; an unknown name is fine. */
  forget(id: string): Promise<void>
  /** Starts servers. `answered` gets the requests that they answer. */
  serve(request: ServeRequest, answered?: AnsweredListener): Promise<void>
  /** Answers the next segment of a connection to this place with one outside of the window. */
  stray(request: StrayRequest): Promise<void>
  /** Ends the servers of this name, or all at this place, and the connections they hold. */
  stopServing(name?: string): Promise<void>
  /** Writes files as seen from the namespace: its `/proc/sys/net`. */
  write(values: Readonly<Record<string, string>>): Promise<void>
}

interface Closable {
  /** Ends the threads, and with them all servers and connections. */
  close(): Promise<void>
}

/** Gets answered requests, the oldest first. */
export type AnsweredListener = (answered: readonly Answered[]) => void

interface Waiting {
  readonly resolve: (answer: AgentAnswer) => void
  readonly reject: (error: Error) => void
}

const thisNetwork: AgentPlace = { namespace: undefined, cgroup: undefined }

/** Starts an agent in the network of this process. It is one thread. */
export function startAgent(): Agent & Closable {
  const thread = new Thread(thisNetwork)
  const agent = agentAt(thisNetwork, { server: thread, client: () => thread })
  return { ...agent, close: () => thread.terminate() }
}

/**
 * Starts agents in network namespaces. A thread may be in one of its own, so a world of ten places
 * costs one process. A thread costs 70 ms of processor time: all agents serve from one, which moves
 * to each namespace in turn, and an agent gets another one with its first connection.
 */
export function startAgents<Name>(
  places: ReadonlyMap<Name, AgentPlace>,
): Closable & { readonly agents: ReadonlyMap<Name, Agent> } {
  const server = new Thread(thisNetwork)
  const threads = [server]
  let isClosed = false
  const agents = [...places].map(([name, place]): [Name, Agent] => {
    let started: Thread | undefined
    const client = () => {
      if (started) return started
      if (isClosed) throw new Error('make a connection: the agent is closed')
      started = new Thread(place)
      threads.push(started)
      return started
    }
    return [name, agentAt(place, { server, client })]
  })
  const close = async () => {
    isClosed = true
    await Promise.all(threads.map((thread) => thread.terminate()))
  }
  return { agents: new Map(agents), close }
}

interface Threads {
  readonly server: Thread
  readonly client: () => Thread
}

function agentAt(place: AgentPlace, { server, client }: Threads): Agent {
  /** Numbers of listeners, with the names of their servers. */
  let listening: { readonly name: string; readonly number: number }[] = []
  const tell = async (thread: Thread, command: AgentCommand) => {
    await thread.ask(command)
  }
  return {
    flow: async (request) => client().ask({ op: 'flow', request }),
    send: async (id, timeoutMs = usualPatienceMs) => {
      const [result] = await client().ask({ op: 'send', id, timeoutMs })
      return result ?? { outcome: 'dropped', latencyMs: timeoutMs }
    },
    forget: async (id) => tell(client(), { op: 'forget', id }),
    stray: (request) => tell(server, { op: 'stray', place, request }),
    serve: (request, answered) => {
      const listener = answered && server.listen(answered)
      if (listener !== undefined) listening.push({ name: request.name, number: listener })
      return tell(server, { op: 'serve', place, request, listener })
    },
    stopServing: async (name) => {
      await tell(server, { op: 'stop-serving', place, name })
      const ended = listening.filter((each) => name === undefined || each.name === name)
      listening = listening.filter((each) => !ended.includes(each))
      for (const { number } of ended) server.unlisten(number)
    },
    write: (values) => tell(server, { op: 'write', place, values }),
  }
}

/** A worker thread of agent-worker.ts. */
class Thread {
  readonly #place: AgentPlace
  readonly #worker: Worker
  readonly #waiting = new Map<number, Waiting>()
  readonly #listeners = new Map<number, AnsweredListener>()
  #numbers = 0
  #ended: Error | undefined
  #isClosing = false

  constructor(place: AgentPlace) {
    this.#place = place
    this.#worker = new Worker(new URL('./agent-worker.js', import.meta.url), {
      workerData: place,
      // Coverage and loaders of this process would slow the start of every thread.
      execArgv: [],
    })
    this.#worker.on('message', (message: AgentAnswer | AgentNews) => this.#hear(message))
    this.#worker.on('error', (cause: Error) => this.#end(cause))
    this.#worker.on('exit', () => this.#end(new Error('the thread of the agent has ended')))
    // Only a command under way keeps the process alive, as with a socket.
    this.#worker.unref()
  }

  async ask(command: AgentCommand): Promise<readonly FlowResult[]> {
    if (this.#ended) throw this.#ended
    const number = this.#numbers++
    this.#worker.ref()
    try {
      const { results, error } = await new Promise<AgentAnswer>((resolve, reject) => {
        this.#waiting.set(number, { resolve, reject })
        this.#worker.postMessage({ number, command } satisfies NumberedCommand)
      })
      if (error !== undefined) {
        const { namespace } = 'place' in command ? command.place : this.#place
        const where = namespace ?? 'the network of this process'
        throw new KernelError('failed', `${command.op} in ${where}: ${error}`)
      }
      return results ?? []
    } finally {
      // The process waits for a thread that is being closed.
      if (this.#waiting.size === 0 && !this.#isClosing) this.#worker.unref()
    }
  }

  /** The number of the listener, for `serve` and `unlisten`. */
  listen(listener: AnsweredListener): number {
    const number = this.#numbers++
    this.#listeners.set(number, listener)
    return number
  }

  unlisten(number: number): void {
    this.#listeners.delete(number)
  }

  async terminate(): Promise<void> {
    this.#isClosing = true
    await this.#worker.terminate()
  }

  #hear(message: AgentAnswer | AgentNews): void {
    if ('answered' in message) {
      for (const [number, list] of message.answered) this.#listeners.get(number)?.(list)
      return
    }
    this.#waiting.get(message.number)?.resolve(message)
    this.#waiting.delete(message.number)
  }

  #end(error: Error): void {
    this.#ended ??= error
    for (const { reject } of this.#waiting.values()) reject(this.#ended)
    this.#waiting.clear()
  }
}
