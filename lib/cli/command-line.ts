import { CommanderError, type Command } from 'commander'
import { untilWritten } from './output.js'
import { failureOf } from './process.js'
import { createProgram, hintAbout, type Subcommands } from './program.js'
import { printable } from '../state/names.js'

/** Runs one command and returns its exit code: 0 done, 1 failed, 2 wrong flag, file or argument. */
export function runCommandLine(argv: readonly string[], more: Subcommands = {}): Promise<number> {
  return untilWritten(say, () => run(argv, more))
}

async function run(argv: readonly string[], more: Subcommands): Promise<number> {
  let program: Command | undefined
  try {
    const created = await createProgram(argv, more)
    program = created.program
    await program.parseAsync(created.argv, { from: 'user' })
    return typeof process.exitCode === 'number' ? process.exitCode : 0
  } catch (error) {
    if (!(error instanceof CommanderError)) return report(error)
    // Commander has already printed the error, or the help.
    const called = program?.commands.find((command) => command.name() === argv[0])
    const hint = program && hintAbout(error.message, program, called)
    if (hint !== undefined) say(hint)
    return error.exitCode === 0 ? 0 : 2
  }
}

function report(error: unknown): number {
  const { exitCode, texts } = failureOf(error)
  for (const text of texts) say(text)
  return exitCode
}

function say(text: string): void {
  for (const line of text.split('\n')) process.stderr.write(`kube-proxy: ${printable(line)}\n`)
}
