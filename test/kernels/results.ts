import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { cellName, columns, type Column } from './columns.js'
import type { KernelImage } from './kernel-image.js'

/** A result, with its day and the version of the kernel's package. */
export interface Seen {
  readonly seen: string
  readonly date: string
  readonly version: string
  /** The reasons for this result. */
  readonly notes?: readonly string[]
}

/** A cell is absent if nothing was tried. */
export type Cells = Partial<Record<Column, Seen>>

export interface ModeResult {
  readonly cells: Cells
  /** Packet cases by name: `passed`, `failed` or `skipped`. */
  readonly cases: Readonly<Record<string, Seen>>
}

/** The results of all runs of a kernel with one set of tools. */
export interface KernelResult {
  readonly kernel: string
  readonly release: string
  readonly version: string
  readonly suite: string
  readonly accelerator: string
  readonly tools: string
  readonly versions: readonly string[]
  /** The day of the last run. */
  readonly date: string
  readonly modes: Readonly<Record<string, ModeResult>>
  /** Notes that a person writes; runs do not change them. */
  readonly notes?: readonly string[]
}

interface Begun {
  readonly kernel: KernelImage
  readonly accelerator: string
  readonly tools: string
}

export const notOver = 'not over'

/** Reads the output of a guest. */
export class Run {
  failures = 0
  readonly #begun: Begun
  readonly #date = new Date().toISOString().slice(0, 10)
  readonly #modes: Record<string, { cells: Cells; cases: Record<string, Seen> }> = {}
  readonly #versions: string[] = []
  /** The reasons why a mode cannot run. */
  readonly #lacks = new Map<string, string[]>()
  /** The mode whose packet cases run. */
  #mode: string | undefined
  /** The cell that has begun and has no result yet. Packet cases have a result each. */
  #playing: { readonly mode: string; readonly column: Column } | undefined
  #ending = 'it was ended by hand'

  constructor(begun: Begun) {
    this.#begun = begun
  }

  read(line: string): void {
    const version = /^# version (.*)/.exec(line)?.[1]
    if (version !== undefined) this.#versions.push(version)
    const [, lacking = '', reason = ''] =
      /^# (\S+) cannot run(?: on this kernel)?: (.*)/.exec(line) ?? []
    if (lacking !== '') this.#lacks.set(lacking, [...(this.#lacks.get(lacking) ?? []), reason])
    const mode = /^# packets of (.*)/.exec(line)?.[1]
    if (mode !== undefined) this.#mode = mode
    const begins = /^# Subtest: (.*)/.exec(line)?.[1]
    if (begins !== undefined) this.#playing = cellOf(begins) ?? this.#playing
    const result = /^(not )?ok \d+ - (.*?)(?: # (.*))?$/.exec(line)
    if (!result) return
    const [, not, name = '', directive = ''] = result
    const isSkipped = /^skip/i.test(directive)
    if (not !== undefined) this.failures++
    if (this.#mode === undefined) this.#cell(name, not !== undefined, isSkipped)
    else this.#case(this.#mode, name, not !== undefined, isSkipped)
  }

  /** The run is complete. */
  ended(): void {
    this.#playing = undefined
  }

  /** The run has ended too early. What was not tried gets no cell. */
  died(reason: string): void {
    this.#ending = reason
  }

  result(): KernelResult {
    const { kernel, accelerator, tools } = this.#begun
    const { name, release, version, suite } = kernel
    const modes: Record<string, ModeResult> = { ...this.#modes }
    if (this.#playing) {
      const { mode, column } = this.#playing
      const cut = this.#seen(notOver, [`${cellName(mode, column)} was not over: ${this.#ending}`])
      const { cells, cases } = this.#of(mode)
      modes[mode] = { cells: { ...cells, [column]: cut }, cases }
    }
    return {
      ...{ kernel: name, release, version, suite, accelerator, tools },
      ...{ versions: this.#versions, date: this.#date, modes },
    }
  }

  #of = (mode: string) => (this.#modes[mode] ??= { cells: {}, cases: {} })

  #seen(seen: string, notes: readonly string[] = []): Seen {
    const { version } = this.#begun.kernel
    return { seen, date: this.#date, version, ...(notes.length > 0 ? { notes } : {}) }
  }

  #cell(name: string, isFailure: boolean, isSkipped: boolean): void {
    const cell = cellOf(name)
    if (!cell) return
    const { mode, column } = cell
    this.#playing = undefined
    const lacks = column === 'probe' ? (this.#lacks.get(mode) ?? []) : []
    const text = isFailure ? 'failed' : isSkipped ? '–' : lacks.length > 0 ? 'no' : 'ok'
    const notes = lacks.map((reason) => `${mode} cannot run: ${reason}`)
    this.#of(mode).cells[column] = this.#seen(text, notes)
  }

  #case(mode: string, name: string, isFailure: boolean, isSkipped: boolean): void {
    const short = name.startsWith(`${mode}: `) ? name.slice(mode.length + 2) : name
    const text = isFailure ? 'failed' : isSkipped ? 'skipped' : 'passed'
    this.#of(mode).cases[short] = this.#seen(text)
  }
}

function cellOf(name: string): { readonly mode: string; readonly column: Column } | undefined {
  const mode = name.slice(0, name.indexOf(':'))
  const column = columns.find((each) => name === cellName(mode, each))
  return column && { mode, column }
}

/** The results of all runs, of each kernel with each set of tools. */
export class Results {
  readonly #kernels: Map<string, KernelResult>

  private constructor(kernels: readonly KernelResult[]) {
    this.#kernels = new Map(kernels.map((each) => [keyOf(each), each]))
  }

  static read(file: string | URL): Results {
    if (!existsSync(file)) return new Results([])
    return Results.of(JSON.parse(readFileSync(file, 'utf8')) as KernelResult[])
  }

  static of(kernels: readonly KernelResult[]): Results {
    return new Results(kernels)
  }

  get kernels(): readonly KernelResult[] {
    return [...this.#kernels.values()].sort((one, other) =>
      keyOf(one).localeCompare(keyOf(other), 'en', { numeric: true }),
    )
  }

  /** Adds a run. What it has not played keeps its earlier result. */
  keep(run: Run): void {
    const result = run.result()
    const before = this.#kernels.get(keyOf(result))
    const modes: Record<string, ModeResult> = { ...before?.modes }
    for (const [mode, { cells, cases }] of Object.entries(result.modes)) {
      const old = modes[mode] ?? { cells: {}, cases: {} }
      modes[mode] = { cells: joined(old.cells, cells), cases: { ...old.cases, ...cases } }
    }
    const versions = result.versions.length > 0 ? result.versions : (before?.versions ?? [])
    this.#kernels.set(keyOf(result), { ...before, ...result, versions, modes })
  }

  write(file: string): void {
    const text = JSON.stringify(this.kernels, undefined, 1)
    // Each result has a line, so that branches with different results merge.
    const short = text.replaceAll(/\{\s+"seen":[^{}]*\}/g, (seen) =>
      seen.replaceAll(/\s*\n\s*/g, ' '),
    )
    writeFileSync(file, `${short}\n`)
  }
}

/** Merges cells. One that did not end does not replace an earlier result. */
function joined(old: Cells, cells: Cells): Cells {
  const known = Object.entries(cells).filter(
    ([column, { seen }]) => seen !== notOver || old[column as Column] === undefined,
  )
  return { ...old, ...Object.fromEntries(known) }
}

const keyOf = ({ kernel, tools }: Pick<KernelResult, 'kernel' | 'tools'>) => `${kernel} ${tools}`
