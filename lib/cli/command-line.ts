import { writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import type { Writable } from 'node:stream'
import { CommanderError, type Command } from 'commander'
import { messageOf } from '../errors.js'
import { failureOf } from './process.js'
import { createProgram, hintAbout, type Subcommands } from './program.js'

/** Runs one command and returns its exit code: 0 done, 1 failed, 2 wrong flag, file or argument. */
export async function runCommandLine(
  argv: readonly string[],
  more: Subcommands = {},
): Promise<number> {
  process.stdout.on('error', endUnwritten)
  writeWhole(process.stdout)
  const exitCode = await run(argv, more)
  // A file refuses at once; the event comes after the exit.
  if (process.stdout.errored) endUnwritten(process.stdout.errored)
  for (const stream of [process.stdout, process.stderr]) await written(stream)
  return exitCode
}

function endUnwritten(error: NodeJS.ErrnoException): never {
  // `kube-proxy render … | head` closes the pipe early, which is not a failure.
  if (error.code === 'EPIPE') process.exit(0)
  say(`the output cannot be written: ${error.message}`)
  process.exit(1)
}

/** Node writes to a file once, and does not look whether a full disk took only the beginning. */
function writeWhole(stdout: Writable & { readonly fd: number }): void {
  // Terminals and pipes take the rest later.
  if (stdout instanceof Socket) return
  stdout._write = (chunk: Buffer, _encoding, done) => {
    try {
      writeFileSync(stdout.fd, chunk)
      done()
    } catch (error) {
      done(error instanceof Error ? error : new Error(messageOf(error)))
    }
  }
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
