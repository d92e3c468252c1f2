import { spawn } from 'node:child_process'
import { KernelError } from '../errors.js'
import { programEnvironment } from './environment.js'

export interface CommandOptions {
  readonly stdin?: string | Uint8Array
  readonly timeoutMs?: number
  readonly signal?: AbortSignal
}

export interface CommandResult {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** Runs a program and tells how it ended. The seam at which unit tests put a fake. */
export type RunCommand = (
  file: string,
  args: readonly string[],
  options?: CommandOptions,
) => Promise<CommandResult>

const defaultTimeoutMs = 120_000

/**
 * Runs a program by argument vector, never through a shell, in the C locale. Resolves for every
 * exit code; rejects with a KernelError when the program is missing, killed or too slow.
 */
export const runCommand: RunCommand = (file, args, options = {}) =>
  new Promise((resolve, reject) => {
    const timeoutMs = options.timeoutMs ?? defaultTimeoutMs
    const child = spawn(file, args, {
      stdio: ['pipe', 'pipe', 'pipe'],
      shell: false,
      env: programEnvironment(),
      ...(options.signal ? { signal: options.signal } : {}),
    })
    const stdout: Buffer[] = []
    const stderr: Buffer[] = []
    let timedOut = false
    const timer = setTimeout(() => {
      timedOut = true
      child.kill('SIGKILL')
    }, timeoutMs)
    child.stdout.on('data', (chunk: Buffer) => stdout.push(chunk))
    child.stderr.on('data', (chunk: Buffer) => stderr.push(chunk))
    // A program that exits before it has read everything closes the pipe; its exit code says why.
    child.stdin.on('error', () => undefined)
    child.stdin.end(options.stdin ?? '')
    child.on('error', (cause: NodeJS.ErrnoException) => {
      clearTimeout(timer)
      const kind =
        cause.code === 'ENOENT' ? 'not-found' : cause.code === 'EACCES' ? 'denied' : 'failed'
      reject(new KernelError(kind, `run ${file}: ${cause.message}`, { cause }))
    })
    child.on('close', (code, killedBy) => {
      clearTimeout(timer)
      const text = Buffer.concat(stderr).toString('utf8')
      if (timedOut) {
        reject(
          new KernelError('timed-out', `run ${file}: no end after ${timeoutMs} ms`, {
            detail: text,
          }),
        )
      } else if (code === null) {
        reject(
          new KernelError('failed', `run ${file}: killed by ${String(killedBy)}`, { detail: text }),
        )
      } else {
        resolve({ code, stdout: Buffer.concat(stdout).toString('utf8'), stderr: text })
      }
    })
  })
