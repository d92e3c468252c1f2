import { spawn, type ChildProcess } from 'node:child_process'
import { KernelError, messageOf } from '../errors.js'

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
    const cannotRun = (cause: unknown) => reject(startFailure(file, cause))
    let child: ChildProcess
    try {
      child = spawn(file, args, {
        stdio: ['pipe', 'pipe', 'pipe'],
        shell: false,
        env: { ...process.env, LC_ALL: 'C' },
        ...(options.signal ? { signal: options.signal } : {}),
      })
    } catch (cause) {
      // Node throws at once where it cannot fork, for want of memory or processes.
      cannotRun(cause)
      return
    }
    const { stdin, stdout: output, stderr: complaints } = child
    // Without descriptors there are no streams, and the error comes as an event.
    if (!stdin || !output || !complaints) {
      child.once('error', cannotRun)
      return
    }
    const stdout: Buffer[] = []
    const stderr: Buffer[] = []
    let timedOut = false
    const timer = setTimeout(() => {
      timedOut = true
      child.kill('SIGKILL')
    }, timeoutMs)
    output.on('data', (chunk: Buffer) => stdout.push(chunk))
    complaints.on('data', (chunk: Buffer) => stderr.push(chunk))
    // A program that exits before it has read everything closes the pipe; its exit code says why.
    stdin.on('error', () => undefined)
    stdin.end(options.stdin ?? '')
    child.on('error', (cause) => {
      clearTimeout(timer)
      cannotRun(cause)
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

const noDescriptors: ReadonlySet<unknown> = new Set(['EMFILE', 'ENFILE'])

function startFailure(file: string, cause: unknown): KernelError {
  const code = cause instanceof Error && 'code' in cause ? cause.code : undefined
  const kind = code === 'ENOENT' ? 'not-found' : code === 'EACCES' ? 'denied' : 'failed'
  const advice = noDescriptors.has(code)
    ? '; no file descriptors are left, raise the limit of open files'
    : ''
  return new KernelError(kind, `run ${file}: ${messageOf(cause)}${advice}`, { cause })
}
