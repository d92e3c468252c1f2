import { SHARE_ENV, Worker } from 'node:worker_threads'
import type { CommandOutput } from '../../lib/kernel/command.js'

/** The program of a node, or the plug-in of kubectl. */
export type CommandProgram = 'kube-proxy' | 'kubectl-svcproxy'

export interface CommandAnswer extends CommandOutput {
  readonly id: number
}

/**
 * Returns what runs commands of the program in one thread of this process, one after the other: a
 * command costs less than a start of the program. For what a command makes of its process, such as
 * signals, logs and the end of its streams, start the program. The thread begins with the first
 * command, in the network namespace of that time.
 */
export function commandThread(
  program: CommandProgram = 'kube-proxy',
): (...argv: readonly string[]) => Promise<CommandOutput> {
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
  return (...argv) =>
    new Promise((resolve, reject) => {
      const [thread, own] = [(worker ??= begin()), ++id]
      waiting.set(own, (answer) => {
        waiting.delete(own)
        // Without a command it keeps no test alive.
        if (waiting.size === 0) thread.unref()
        if (answer instanceof Error) reject(answer)
        else resolve(answer)
      })
      thread.ref()
      thread.postMessage({ id: own, argv })
    })
}
