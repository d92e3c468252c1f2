import { Worker } from 'node:worker_threads'
import { KernelError } from '../../errors.js'
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

/** A thread inside a namespace that serves as a backend and makes connections as a client. */
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
  /** Ends the servers of this name, or all of this agent, and the connections they hold. */
  stopServing(name?: string): Promise<void>
  /** Writes files as seen from the namespace: its `/proc/sys/net`. */
  write(values: Readonly<Record<string, string>>): Promise<void>
  close(): Promise<void>
}

/** Gets answered requests, the oldest first. */
export type AnsweredListener = (answered: readonly Answered[]) => void

interface Waiting {
  readonly resolve: (answer: AgentAnswer) => void
  readonly reject: (error: Error) => void
}

/**
 * Starts an agent as a worker thread. A thread may be in a network namespace of its own, so a world
 * of ten places costs one process. Without a namespace it uses the network of this process. With a
 * cgroup, which must be a threaded one, its sockets belong to that cgroup.
 */
export function startAgent(namespace?: string, cgroup?: string): Agent {
  const { ask, listeners, terminate } = startWorker({ namespace, cgroup })
  const tell = async (command: AgentCommand) => {
    await ask(command)
  }
  return {
    flow: (request) => ask({ op: 'flow', request }),
    send: async (id, timeoutMs = 2000) => {
      const [result] = await ask({ op: 'send', id, timeoutMs })
      return result ?? { outcome: 'dropped', latencyMs: timeoutMs }
    },
    forget: (id) => tell({ op: 'forget', id }),
    serve: (request, answered) => {
      if (answered) listeners.set(request.name, answered)
      return tell({ op: 'serve', request, tells: answered !== undefined })
    },
    stray: (request) => tell({ op: 'stray', request }),
    stopServing: async (name) => {
      await tell({ op: 'stop-serving', name })
      if (name === undefined) listeners.clear()
      else listeners.delete(name)
    },
    write: (values) => tell({ op: 'write', values }),
    close: async () => {
      await terminate()
    },
  }
}

function startWorker({ namespace, cgroup }: AgentPlace) {
  const worker = new Worker(new URL('./agent-worker.js', import.meta.url), {
    workerData: { namespace, cgroup } satisfies AgentPlace,
    // Coverage and loaders of this process would slow the start of every thread.
    execArgv: [],
  })
  const where = namespace ?? 'the network of this process'
  const waiting = new Map<number, Waiting>()
  /** By the name of the backend. */
  const listeners = new Map<string, AnsweredListener>()
  let numbers = 0
  let ended: Error | undefined
  let isClosing = false
  const end = (error: Error) => {
    ended ??= error
    for (const { reject } of waiting.values()) reject(ended)
    waiting.clear()
  }
  worker.on('message', (answer: AgentAnswer | AgentNews) => {
    if ('answered' in answer) {
      for (const [name, list] of answer.answered) listeners.get(name)?.(list)
      return
    }
    waiting.get(answer.number)?.resolve(answer)
    waiting.delete(answer.number)
  })
  worker.on('error', (cause: Error) => end(cause))
  worker.on('exit', () => end(new Error(`agent in ${where} has ended`)))
  // Only a command under way keeps the process alive, as with a socket.
  worker.unref()

  const ask = async (command: AgentCommand): Promise<readonly FlowResult[]> => {
    if (ended) throw ended
    const number = numbers++
    worker.ref()
    try {
      const { results, error } = await new Promise<AgentAnswer>((resolve, reject) => {
        waiting.set(number, { resolve, reject })
        worker.postMessage({ number, command } satisfies NumberedCommand)
      })
      if (error !== undefined) {
        throw new KernelError('failed', `${command.op} in ${where}: ${error}`)
      }
      return results ?? []
    } finally {
      // The process waits for a thread that is being closed.
      if (waiting.size === 0 && !isClosing) worker.unref()
    }
  }
  const terminate = () => {
    isClosing = true
    return worker.terminate()
  }
  return { ask, listeners, terminate }
}
