import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

const patienceMs = 120_000

/**
 * One of our programs in a network namespace. `ip` becomes the program, so both have one process
 * id.
 */
export class Program {
  readonly #child: ChildProcess
  readonly #exited: Promise<unknown>
  #said = ''
  #heard: () => void = () => undefined

  /** `entry` below build/lib. */
  constructor(namespace: string, entry: string, args: readonly string[]) {
    const file = fileURLToPath(new URL(`../../lib/${entry}`, import.meta.url))
    const argv = ['netns', 'exec', namespace, process.execPath, file, ...args]
    this.#child = spawn('ip', argv, { stdio: ['ignore', 'pipe', 'pipe'] })
    this.#exited = once(this.#child, 'exit').then(() => this.#heard())
    for (const output of [this.#child.stdout, this.#child.stderr]) {
      output?.setEncoding('utf8').on('data', (text: string) => {
        this.#said = (this.#said + text).slice(-4000)
        this.#heard()
      })
    }
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  /** Resolves once the output has the pattern; one caller at a time. */
  async says(pattern: RegExp): Promise<void> {
    const isLate = AbortSignal.timeout(patienceMs)
    isLate.addEventListener('abort', () => this.#heard())
    while (!pattern.test(this.#said)) {
      if (isLate.aborted || this.#child.exitCode !== null) {
        throw new Error(`${this.#child.spawnargs.join(' ')} said only: ${this.#said}`)
      }
      await new Promise<void>((resolve) => (this.#heard = resolve))
    }
  }

  async end(): Promise<void> {
    this.#child.kill('SIGKILL')
    await this.#exited
  }
}
