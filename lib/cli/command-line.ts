import { CommanderError, type Command } from 'commander'
import { failureOf } from './process.js'
import { createProgram, hintAbout, type Subcommands } from './program.js'

/** Runs one command and returns its exit code: 0 done, 1 failed, 2 wrong flag, file or argument. */
export async function runCommandLine(
  argv: readonly string[],
  more: Subcommands = {},
): Promise<number> {
  // `kube-proxy render … | head` closes the pipe early, which is not a failure.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    process.exit(error.code === 'EPIPE' ? 0 : 1)
  })
  const exitCode = await run(argv, more)
  for (const stream of [process.stdout, process.stderr]) await written(stream)
  return exitCode
}

/** Waits until the reader of a pipe has taken all output; the exit would throw the rest away. */
async function written(stream: NodeJS.WriteStream): Promise<void> {
  if (stream.writableLength === 0) return
  await new Promise<void>((resolve) => stream.write('', () => resolve()))
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
  for (const line of text.split('\n')) process.stderr.write(`kube-proxy: ${line}\n`)
}
