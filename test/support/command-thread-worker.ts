import { parentPort, workerData } from 'node:worker_threads'
import { startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'
import { joinNetworkNamespace } from '../../lib/lab/world/namespaces.js'
import type { CommandAnswer, CommandProgram, CommandQuestion } from './command-thread.js'

/** The thread of `commandThread`. */

// A fork copies the page tables of this process, which is larger than a command.
await startProgramsQuickly()

type Run = (argv: readonly string[]) => Promise<number>
const programs: Readonly<Record<CommandProgram, () => Promise<Run>>> = {
  'kube-proxy': async () => (await import('../../lib/cli/program.js')).runCommandLine,
  'kubectl-svcproxy': async () => (await import('../../lib/cli/kubectl/program.js')).runPlugin,
  'kubectl_complete-svcproxy': async () => {
    const { runCompletion } = await import('../../lib/cli/kubectl/complete.js')
    return (argv) => runCompletion(argv).then(() => 0)
  },
}
const runProgram = await programs[workerData as CommandProgram]()

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
