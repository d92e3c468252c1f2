import { parentPort } from 'node:worker_threads'
import { runCommandLine } from '../../lib/cli/program.js'
import { startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'
import type { CommandAnswer } from './command-thread.js'

/** The thread of `commandThread`. */

// A fork copies the page tables of this process, which is larger than a command.
await startProgramsQuickly()

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

async function answer(id: number, argv: readonly string[]): Promise<CommandAnswer> {
  printed = { stdout: '', stderr: '' }
  process.exitCode = undefined
  const code = await runCommandLine(argv)
  return { id, code, ...printed }
}

let last: Promise<unknown> = Promise.resolve()
parentPort?.on('message', ({ id, argv }: { id: number; argv: readonly string[] }) => {
  last = last.then(async () => parentPort?.postMessage(await answer(id, argv)))
})
