import { SHARE_ENV, Worker } from 'node:worker_threads'
import type { CommandOutput } from '../../lib/kernel/command.js'

/** The program of a node, the plug-in of kubectl, or what kubectl asks for its completion. */
export type CommandProgram = 'kube-proxy' | 'kubectl-svcproxy' | 'kubectl_complete-svcproxy'

export interface CommandAnswer extends CommandOutput {
  readonly id: number
}

export interface CommandQuestion {
  readonly id: number
  readonly argv: readonly string[]
  /** The name of the network namespace that the thread enters first. */
  readonly namespace: string | undefined
}

export type Command = (...argv: readonly string[]) => Promise<CommandOutput>

/**
 * Returns what runs commands of the program in one thread of this process, one after the other: a
 * command costs less than a start of the program. For what a command makes of its process, such as
 * signals, logs and the end of its streams, start the program. The thread begins with the first
 * command, in the network namespace of that time.
 *
 * `inside` runs commands in a network namespace with a name. Files are often read by other threads,
 * which stay outside: a command that reads below /proc/net has to be a process there.
 */
export function commandThread(
  program: CommandProgram = 'kube-proxy',
): Command & { inside(namespace: string): Command } {
  let worker: Worker | undefined
  let id = 0
  const waiting = new Map<number, (answer: CommandAnswer | Error) => void>()
  const failed = (error: Error) => {
    worker = undefined
    waiting.forEach((take) => take(error))
  }
  const begin = () => {
    const file = new URL('command-thread-worker.js', import.meta.url)
    const begun = new Worker(file, { env: SHARE_ENV, workerData: program })
    begun.on('error', failed)
    begun.on('exit', (code) => failed(new Error(`the thread of commands ended with ${code}`)))
    begun.on('message', (answer: CommandAnswer) => waiting.get(answer.id)?.(answer))
    return begun
  }
  const run = (namespace: string | undefined, argv: readonly string[]) =>
    new Promise<CommandOutput>((resolve, reject) => {
      const [thread, own] = [(worker ??= begin()), ++id]
      waiting.set(own, (answer) => {
        waiting.delete(own)
        // Without a command it keeps no test alive.
        if (waiting.size === 0) thread.unref()
        if (answer instanceof Error) reject(answer)
        else resolve(answer)
      })
      thread.ref()
      thread.postMessage({ id: own, argv, namespace } satisfies CommandQuestion)
    })
  const here: Command = (...argv) => run(undefined, argv)
  return Object.assign(here, {
    inside: (namespace: string): Command => {
      return (...argv) => run(namespace, argv)
    },
  })
}
