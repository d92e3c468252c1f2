import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { World } from '../../lib/lab/world/world.js'
import type { CaseSettings } from './case.js'
import type { Manifest } from './objects.js'
import type { Changes, Subject } from './subject.js'

/** One line to the subject process: changes, or the settings for a new start. */
export type SubjectOrder = Changes | { readonly settings: CaseSettings }

/** One line of the subject process: ready, or the result of an apply. */
export interface SubjectAnswer {
  readonly error?: string
}

/** The process gets the V8 flags of this one. */
export const subjectCommand: readonly string[] = [
  process.execPath,
  ...process.execArgv,
  fileURLToPath(new URL('./subject-main.js', import.meta.url)),
]

/** A mode, or the reference proxy, as a process inside the node's namespace. */
export class ProcessSubject implements Subject {
  readonly name: string
  #child: ChildProcessWithoutNullStreams | undefined
  #lines: AsyncIterator<string> | undefined
  #errors = ''

  constructor(name: string) {
    this.name = name
  }

  async start(world: World, settings: CaseSettings, objects: readonly Manifest[]): Promise<void> {
    const argv = [...subjectCommand, this.name, JSON.stringify(settings), world.cgroup ?? '']
    const child = world.spawn('node', argv)
    this.#errors = ''
    child.stderr.on('data', (chunk: Buffer) => {
      this.#errors = (this.#errors + chunk.toString('utf8')).slice(-8000)
    })
    this.#child = child
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
    await this.#answer('start')
    await this.apply({ upserts: objects, removals: [] })
  }

  async startAnew(settings: CaseSettings, objects: readonly Manifest[]): Promise<void> {
    await this.#order('start anew', { settings })
    await this.apply({ upserts: objects, removals: [] })
  }

  apply(changes: Changes): Promise<void> {
    return this.#order('apply', changes)
  }

  async stop(): Promise<void> {
    const child = this.#child
    if (!child || child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.stdin.end()
    await exited
  }

  async #order(action: string, order: SubjectOrder): Promise<void> {
    this.#child?.stdin.write(`${JSON.stringify(order)}\n`)
    await this.#answer(action)
  }

  async #answer(action: string): Promise<void> {
    const next = await this.#lines?.next()
    if (!next || next.done === true) {
      throw new Error(`${action} ${this.name}: the process ended: ${this.#errors}`)
    }
    const { error } = JSON.parse(next.value) as SubjectAnswer
    if (error !== undefined) throw new Error(`${action} ${this.name}: ${error}\n${this.#errors}`)
  }
}
