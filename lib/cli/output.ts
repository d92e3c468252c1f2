import { writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import type { Writable } from 'node:stream'
import { messageOf } from '../errors.js'

/**
 * Runs a command, and returns its exit code once all of its output is written. Ends the process if
 * the output cannot be written, and says why.
 */
export async function untilWritten(
  say: (text: string) => void,
  run: () => Promise<number>,
): Promise<number> {
  const endUnwritten = (error: NodeJS.ErrnoException) => {
    // `kube-proxy render … | head` closes the pipe early, which is not a failure.
    if (error.code === 'EPIPE') process.exit(0)
    say(`the output cannot be written: ${error.message}`)
    process.exit(1)
  }
  process.stdout.on('error', endUnwritten)
  writeWhole(process.stdout)
  const exitCode = await run()
  // A file refuses at once; the event comes after the exit.
  if (process.stdout.errored) endUnwritten(process.stdout.errored)
  for (const stream of [process.stdout, process.stderr]) await written(stream)
  return exitCode
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
