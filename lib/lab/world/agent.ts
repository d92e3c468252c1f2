import type { Worker } from 'node:worker_threads'
import { startThread } from '../../engine.js'
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
  Namespace,
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

/** Starts an agent in the network of this process. It is one thread. */
export function startAgent(): Agent & Closable {
  const thread = new Thread(undefined)
  return { ...agentAt(undefined, thread), close: () => thread.terminate() }
}

/**
 * Starts agents in network namespaces. They share one thread for each cgroup, which moves to each
 * namespace in turn. Another thread would load and compile everything once more, and would be slow
 * for its first thousands of connections. A move to another cgroup would take milliseconds.
 */
export function startAgents<Name>(
  places: ReadonlyMap<Name, AgentPlace>,
): Closable & { readonly agents: ReadonlyMap<Name, Agent> } {
  const threads = new Map<string | undefined, Thread>()
  const agents = [...places].map(([name, { namespace, cgroup }]): [Name, Agent] => {
    const thread = threads.get(cgroup) ?? new Thread(cgroup)
    threads.set(cgroup, thread)
    return [name, agentAt(namespace, thread)]
  })
  const close = async () => {
    await Promise.all([...threads.values()].map((thread) => thread.terminate()))
  }
  return { agents: new Map(agents), close }
}

function agentAt(namespace: Namespace, thread: Thread): Agent {
  /** Numbers of listeners, with the names of their servers. */
  let listening: { readonly name: string; readonly number: number }[] = []
  const tell = async (command: AgentCommand) => {
    await thread.ask(command)
  }
  return {
    flow: (request) => thread.ask({ op: 'flow', namespace, request }),
    send: async (id, timeoutMs = usualPatienceMs) => {
      const [result] = await thread.ask({ op: 'send', namespace, id, timeoutMs })
      return result ?? { outcome: 'dropped', latencyMs: timeoutMs }
    },
    forget: (id) => tell({ op: 'forget', namespace, id }),
    stray: (request) => tell({ op: 'stray', namespace, request }),
    serve: (request, answered) => {
      const listener = answered && thread.listen(answered)
      if (listener !== undefined) listening.push({ name: request.name, number: listener })
      return tell({ op: 'serve', namespace, request, listener })
    },
    stopServing: async (name) => {
      await tell({ op: 'stop-serving', namespace, name })
      const ended = listening.filter((each) => name === undefined || each.name === name)
      listening = listening.filter((each) => !ended.includes(each))
      for (const { number } of ended) thread.unlisten(number)
    },
    write: (values) => tell({ op: 'write', namespace, values }),
  }
}

/** A worker thread of agent-worker.ts. */
class Thread {
  readonly #worker: Worker
  readonly #waiting = new Map<number, Waiting>()
  readonly #listeners = new Map<number, AnsweredListener>()
  #numbers = 0
  #ended: Error | undefined
  #isClosing = false

  constructor(cgroup: string | undefined) {
    this.#worker = startThread(new URL('./agent-worker.js', import.meta.url), cgroup)
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
        const where = command.namespace ?? 'the network of this process'
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
