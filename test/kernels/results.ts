import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { cellName, columns, type Column } from './columns.js'
import { cache, type KernelImage } from './kernel-image.js'

/** What a run has seen of one mode: a cell is absent where nothing was tried. */
export type Cells = Partial<Record<Column, string>>

export interface RunResult {
  readonly kernel: string
  readonly release: string
  readonly version: string
  readonly suite: string
  readonly accelerator: string
  readonly tools: string
  readonly versions: readonly string[]
  readonly date: string
  readonly minutes: number
  readonly modes: Readonly<Record<string, Cells>>
  /** Why a mode did not run, and what failed. */
  readonly notes: readonly string[]
}

interface Begun {
  readonly kernel: KernelImage
  readonly accelerator: string
  readonly tools: string
}

/** Reads what a guest prints. */
export class Run {
  failures = 0
  readonly #begun: Begun
  readonly #began = Date.now()
  readonly #modes: Record<string, Cells> = {}
  readonly #versions: string[] = []
  readonly #notes: string[] = []
  readonly #packets = new Map<string, { passed: number; failed: number; skipped: number }>()
  #mode: string | undefined
  #isWhole = false

  constructor(begun: Begun) {
    this.#begun = begun
  }

  read(line: string): void {
    const version = /^# version (.*)/.exec(line)?.[1]
    if (version !== undefined) this.#versions.push(version)
    const note = /^# (\S+ cannot run.*)/.exec(line)?.[1]
    if (note !== undefined && !this.#notes.includes(note)) this.#notes.push(note)
    this.#mode = /^# packets of (.*)/.exec(line)?.[1] ?? this.#mode
    const result = /^(not )?ok \d+ - (.*?)(?: # (.*))?$/.exec(line)
    if (!result) return
    const [, not, name = '', directive = ''] = result
    const isSkipped = /^skip/i.test(directive)
    if (not !== undefined) this.failures++
    if (not !== undefined) this.#notes.push(`failed: ${this.#mode ?? ''} ${name}`)
    if (this.#mode === undefined) this.#cell(name, not !== undefined, isSkipped)
    else this.#packet(this.#mode, not !== undefined, isSkipped)
  }

  /** Everything that was to be seen was. */
  ended(): void {
    this.#isWhole = true
  }

  /** What was not seen until then stays without a cell. */
  died(reason: string): void {
    this.#notes.push(`${notWhole}: ${reason}`)
  }

  result(): RunResult {
    const { kernel, accelerator, tools } = this.#begun
    for (const [mode, { passed, failed, skipped }] of this.#packets) {
      const without = skipped > 0 ? `, ${skipped} not in this mode` : ''
      const soFar = mode === this.#mode && !this.#isWhole ? ' so far' : ''
      const text = `${failed > 0 ? `${failed} failed of ${passed + failed}` : `${passed}${without}`}${soFar}`
      this.#modes[mode] = { ...this.#modes[mode], packets: text }
    }
    return {
      ...{
        kernel: kernel.name,
        release: kernel.release,
        version: kernel.version,
        suite: kernel.suite,
      },
      ...{ accelerator, tools, versions: this.#versions },
      date: new Date().toISOString().slice(0, 10),
      minutes: Math.max(1, Math.ceil((Date.now() - this.#began) / 60_000)),
      modes: this.#modes,
      notes: this.#notes,
    }
  }

  #cell(name: string, isFailure: boolean, isSkipped: boolean): void {
    const mode = name.slice(0, name.indexOf(':'))
    const column = columns.find((each) => name === cellName(mode, each))
    if (column === undefined) return
    const lacks = this.#notes.some((note) => note.startsWith(`${mode} cannot run`))
    const text = isFailure ? 'failed' : isSkipped ? '–' : column === 'probe' && lacks ? 'no' : 'ok'
    this.#modes[mode] = { ...this.#modes[mode], [column]: text }
  }

  #packet(mode: string, isFailure: boolean, isSkipped: boolean): void {
    const counts = this.#packets.get(mode) ?? { passed: 0, failed: 0, skipped: 0 }
    counts[isFailure ? 'failed' : isSkipped ? 'skipped' : 'passed']++
    this.#packets.set(mode, counts)
  }
}

const file = join(cache, 'results.json')
const notWhole = 'the run is not whole'

/** The newest run of each kernel with each set of tools. */
export class Results {
  readonly #runs: Map<string, RunResult>

  private constructor(runs: readonly RunResult[]) {
    this.#runs = new Map(runs.map((run) => [keyOf(run), run]))
  }

  static read(): Results {
    if (!existsSync(file)) return new Results([])
    return Results.of(JSON.parse(readFileSync(file, 'utf8')) as RunResult[])
  }

  static of(runs: readonly RunResult[]): Results {
    return new Results(runs)
  }

  get runs(): readonly RunResult[] {
    return [...this.#runs.values()].sort((one, other) =>
      keyOf(one).localeCompare(keyOf(other), 'en', { numeric: true }),
    )
  }

  begin(begun: Begun): Run {
    return new Run(begun)
  }

  /** Modes that a shorter run did not play keep what the one before has seen. */
  keep(run: Run): void {
    const result = run.result()
    const before = this.#runs.get(keyOf(result))
    const isSame = before?.version === result.version
    const modes = isSame ? dated(before, result.date) : {}
    for (const [mode, cells] of Object.entries(result.modes))
      modes[mode] = { ...modes[mode], ...cells }
    const played = Object.keys(result.modes)
    const kept = (isSame ? before.notes : []).filter(
      (note) =>
        !note.startsWith(notWhole) &&
        !played.some((mode) => note.includes(`${mode} `) || note.includes(`${mode}:`)),
    )
    const versions = result.versions.length > 0 || !isSame ? result.versions : before.versions
    const notes = [...kept, ...result.notes]
    this.#runs.set(keyOf(result), { ...result, versions, modes, notes })
  }

  write(): void {
    mkdirSync(cache, { recursive: true })
    writeFileSync(file, JSON.stringify(this.runs, undefined, 1))
  }
}

/** Cells of another day say of which. */
function dated({ modes, date }: RunResult, today: string): Record<string, Cells> {
  const withDate = (text: string) => (text.endsWith(')') ? text : `${text} (${date})`)
  if (date === today) return { ...modes }
  return Object.fromEntries(
    Object.entries(modes).map(([mode, cells]) => [
      mode,
      Object.fromEntries(Object.entries(cells).map(([column, text]) => [column, withDate(text)])),
    ]),
  )
}

const keyOf = ({ kernel, tools }: Pick<RunResult, 'kernel' | 'tools'>) => `${kernel} ${tools}`
