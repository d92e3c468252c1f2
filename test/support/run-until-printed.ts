import { spawn } from 'node:child_process'
import { once } from 'node:events'
import type { CommandOutput } from '../../lib/kernel/command.js'

/** Runs a command. One that is endless is stopped by Ctrl-C, once it has printed something. */
export async function runUntilPrinted(
  [command = '', ...argv]: readonly string[],
  isEndless: boolean,
): Promise<CommandOutput> {
  const child = spawn(command, argv, { stdio: ['ignore', 'pipe', 'pipe'] })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
  // A second signal would end it at once.
  if (isEndless) child.stdout.once('data', () => child.kill('SIGINT'))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
  const [code] = (await once(child, 'close')) as [number | null]
  return { code: code ?? 1, stdout, stderr }
}
