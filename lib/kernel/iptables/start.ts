import { spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'

/** How a program ended: with an exit code, or by a signal. */
export interface Ended {
  readonly code: number | null
  readonly signal: string | null
}

/** A program that runs. Without descriptors it has no streams. */
export interface StartedProgram {
  readonly stdin: Writable | null | undefined
  readonly stdout: Readable | null | undefined
  readonly stderr: Readable | null | undefined
  kill(): void
  /** One of the two is called: once the program and its streams have ended, or if it never ran. */
  onEnd(tell: (ended: Ended) => void, cannotRun: (cause: unknown) => void): void
}

/** Starts a program, never by a shell. May throw where it cannot be started. */
export type Start = (
  file: string,
  args: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
) => StartedProgram

let start: Start = (file, args, env) => {
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'pipe'], shell: false, env })
  return {
    stdin: child.stdin,
    stdout: child.stdout,
    stderr: child.stderr,
    kill: () => child.kill('SIGKILL'),
    onEnd: (tell, cannotRun) => {
      child.once('error', cannotRun)
      child.once('close', (code, signal) => tell({ code, signal }))
    },
  }
}

/** Programs are started by `other` from now on. */
export function startProgramsWith(other: Start): void {
  start = other
}

/** A program that has not ended. */
export interface RunningProgram {
  /** Its name and arguments. */
  readonly command: string
  /** As `performance.now()` gives it. */
  readonly startedAt: number
  end(): void
}

/** How long the streams of a killed program may stay open. */
const cutOffMs = 1000

/** Behind a script there is a program that is not killed, and that holds the streams open. */
export function endProgram(program: StartedProgram, cutOff?: () => void): NodeJS.Timeout {
  program.kill()
  return setTimeout(() => {
    cutOff?.()
    program.stdout?.destroy()
    program.stderr?.destroy()
  }, cutOffMs)
}

/** Knows which programs run that were started in this thread since then, until `end`. */
export function watchPrograms() {
  const running = new Set<RunningProgram>()
  const before = start
  start = (file, args, environment) => {
    const program = before(file, args, environment)
    const command = [file, ...args].join(' ')
    const end = () => void endProgram(program)
    const one: RunningProgram = { command, startedAt: performance.now(), end }
    running.add(one)
    const onEnd: StartedProgram['onEnd'] = (tell, cannotRun) => {
      program.onEnd(
        (ended) => {
          running.delete(one)
          tell(ended)
        },
        (cause) => {
          running.delete(one)
          cannotRun(cause)
        },
      )
    }
    return { ...program, onEnd }
  }
  return { running: running as ReadonlySet<RunningProgram>, end: () => void (start = before) }
}

export const startProgram: Start = (file, args, environment) => start(file, args, environment)
