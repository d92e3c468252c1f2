import { parentPort, workerData } from 'node:worker_threads'
import { startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'
import { joinNetworkNamespace } from '../../lib/lab/world/namespaces.js'
import type { CommandAnswer, CommandProgram, CommandQuestion } from './command-thread.js'

/** The thread of `commandThread`. */

// A fork copies the page tables of this process, which is larger than a command.
await startProgramsQuickly()

const runProgram =
  (workerData as CommandProgram) === 'kubectl-svcproxy'
    ? (await import('../../lib/cli/kubectl/program.js')).runPlugin
    : (await import('../../lib/cli/program.js')).runCommandLine

let printed = { stdout: '', stderr: '' }
for (const name of ['stdout', 'stderr'] as const) {
  process[name].write = (text: string | Uint8Array) => {
    printed[name] += typeof text === 'string' ? text : Buffer.from(text).toString()
    return true
  }
  // Each command adds listeners, as if it were the only one.
  process[name].setMaxListeners(0)
}
process.setMaxListeners(0)

async function answer({ id, argv, namespace }: CommandQuestion): Promise<CommandAnswer> {
  if (namespace !== undefined) joinNetworkNamespace(namespace)
  printed = { stdout: '', stderr: '' }
  process.exitCode = undefined
  const code = await runProgram(argv)
  return { id, code, ...printed }
}

let last: Promise<unknown> = Promise.resolve()
parentPort?.on('message', (question: CommandQuestion) => {
  last = last.then(async () => parentPort?.postMessage(await answer(question)))
})
