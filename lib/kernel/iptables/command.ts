import { delimiter } from 'node:path'
import { IptablesError } from './error.js'
import { endProgram, startProgram, type StartedProgram } from './start.js'

export interface CommandOutput {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** Runs a program by argument vector; rejects with IptablesError when it cannot be run at all. */
export type Run = (
  file: string,
  args: readonly string[],
  options?: RunOptions,
) => Promise<CommandOutput>

export interface RunOptions {
  readonly stdin?: string
  readonly timeoutMs?: number
  /** Takes what the program prints, piece by piece, instead of keeping all of it in `stdout`. */
  readonly onOutput?: (text: string) => void
}

/** A program that needs longer will never end. */
const longestMs = 1_800_000

/** A program that was ended gets twice the time at the next call, so on a slow node one succeeds. */
export const timeoutAfter = (timeoutMs: number) => Math.min(2 * timeoutMs, longestMs)

/** Never starts a shell. Programs print in the C locale. */
export const runProgram: Run = (file, args, options = {}) =>
  new Promise((resolve, reject) => {
    const timeoutMs = options.timeoutMs ?? 120_000
    let timedOut = false
    let isCutOff = false
    let timer = setTimeout(() => {
      timedOut = true
      timer = endProgram(program, () => (isCutOff = true))
    }, timeoutMs)
    const cannotRun = (cause: unknown) => {
      clearTimeout(timer)
      reject(startFailure(file, cause))
    }
    let program: StartedProgram
    try {
      program = startProgram(file, args, programEnvironment())
    } catch (cause) {
      // Memory, processes or descriptors are used up, or there is no such program.
      cannotRun(cause)
      return
    }
    const stdout: Buffer[] = []
    const stderr: Buffer[] = []
    program.onEnd(({ code, signal }) => {
      clearTimeout(timer)
      const complaint = Buffer.concat(stderr).toString('utf8')
      const fail = (kind: 'timed-out' | 'interrupted' | 'failed', reason: string) =>
        reject(new IptablesError(kind, `run ${file}: ${reason}`, { detail: complaint }))
      // If this thread was held up, a program that has ended by itself is killed in vain.
      if (isCutOff || (timedOut && code === null)) fail('timed-out', `no end after ${timeoutMs} ms`)
      else if (code === null)
        fail(signal === 'SIGINT' ? 'interrupted' : 'failed', `killed by ${String(signal)}`)
      else resolve({ code, stdout: Buffer.concat(stdout).toString('utf8'), stderr: complaint })
    }, cannotRun)
    const { stdin, stdout: output, stderr: complaints } = program
    // Without streams the error comes as an event.
    if (!stdin || !output || !complaints) return
    const { onOutput } = options
    if (onOutput) output.setEncoding('utf8').on('data', onOutput)
    else output.on('data', (chunk: Buffer) => stdout.push(chunk))
    complaints.on('data', (chunk: Buffer) => stderr.push(chunk))
    // A program that exits before it has read everything closes the pipe; its exit code says why.
    stdin.on('error', () => undefined)
    stdin.end(options.stdin ?? '')
  })

const noDescriptors = 'no file descriptors are left, raise the limit of open files'

/** What is used up where no program can be started, and what to do. */
const startAdvice: ReadonlyMap<unknown, string> = new Map([
  ['EMFILE', noDescriptors],
  ['ENFILE', noDescriptors],
  ['EAGAIN', 'no more processes are allowed, raise pids.max of the cgroup or `ulimit -u`'],
])

/** Whether a program could not be started for want of something, which says nothing about it. */
export const isShort = (error: unknown) =>
  error instanceof IptablesError && startAdvice.has(codeOf(error.cause))

const codeOf = (cause: unknown) =>
  cause instanceof Error && 'code' in cause ? cause.code : undefined

function startFailure(file: string, cause: unknown): IptablesError {
  const code = codeOf(cause)
  const kind = code === 'ENOENT' ? 'missing' : code === 'EACCES' ? 'denied' : 'failed'
  const reason = cause instanceof Error ? cause.message : String(cause)
  const advice = startAdvice.get(code)
  const message = `run ${file}: ${reason}${advice === undefined ? '' : `; ${advice}`}`
  return new IptablesError(kind, message, { cause })
}

/** Folders of programs for administrators; the search path of other users leaves them out. */
const adminFolders = ['/usr/sbin', '/sbin']

type Environment = Readonly<Record<string, string | undefined>>

/**
 * The environment of started programs: they print in English, and are found in the folders where
 * scripts/setup finds them, so that `iptables` in /usr/sbin is never called "not installed".
 */
export function programEnvironment(own: Environment = process.env): Environment {
  // An empty entry would mean the current folder.
  const path = own.PATH === undefined || own.PATH === '' ? '/usr/bin:/bin' : own.PATH
  // Windows has neither these folders nor this separator; kubectl runs there, too.
  if (delimiter !== ':') return { ...own, LC_ALL: 'C' }
  const folders = path.split(':')
  const missing = adminFolders.filter((folder) => !folders.includes(folder))
  return { ...own, PATH: [path, ...missing].join(':'), LC_ALL: 'C' }
}
