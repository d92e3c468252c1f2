import { writeFileSync } from 'node:fs'
import type { CaseResult } from './runner.js'

/** The results of one mode. */
export interface ModeResults {
  readonly mode: string
  readonly results: readonly CaseResult[]
}

/** One case as TAP, with its failures as the diagnostic. */
export function tapLine(number: number, mode: string, result: CaseResult): string {
  const words = `${number} - ${mode}: ${result.topic}: ${result.name.replaceAll('#', '\\#')}`
  if (result.outcome === 'skipped') return `ok ${words} # SKIP ${result.skipped.join('; ')}\n`
  const time = ` # time=${Math.round(result.durationMs)}ms`
  const notes = result.skipped.map((reason) => `  # flows left out: ${reason}\n`).join('')
  if (result.outcome === 'passed') return `ok ${words}${time}\n${notes}`
  const failures = result.failures.map((failure) => `    - ${JSON.stringify(failure)}\n`).join('')
  return `not ok ${words}${time}\n  ---\n  failures:\n${failures}  ...\n${notes}`
}

/**
 * A table of cases and modes: `+` passed, `-` failed, `s` skipped, `.` not run. Counts and reasons
 * follow. The short table leaves out cases that every mode passed.
 */
export function tableText(
  modes: readonly ModeResults[],
  { isShort }: { readonly isShort: boolean },
): string {
  const names = new Map<string, string>()
  for (const { results } of modes) {
    for (const { topic, name } of results) names.set(`${topic}: ${name}`, topic)
  }
  const width = Math.max(...modes.map(({ mode }) => mode.length), 1)
  const columns = (cells: readonly string[]) => cells.map((cell) => cell.padEnd(width)).join('  ')
  const lines = [`${columns(modes.map(({ mode }) => mode))}  case`]
  const symbols = { passed: '+', failed: '-', skipped: 's' }
  for (const name of names.keys()) {
    const cells = modes.map(({ results }) => {
      const result = results.find((candidate) => `${candidate.topic}: ${candidate.name}` === name)
      return result ? symbols[result.outcome] : '.'
    })
    if (!isShort || cells.some((cell) => cell !== symbols.passed)) {
      lines.push(`${columns(cells)}  ${name}`)
    }
  }
  const totals = modes.map(({ mode, results }) => {
    const count = (outcome: CaseResult['outcome']) =>
      results.filter((result) => result.outcome === outcome).length
    const checks = results.reduce((sum, result) => sum + result.checks, 0)
    return (
      `${mode}: ${count('passed')} passed, ${count('failed')} failed, ` +
      `${count('skipped')} skipped of ${results.length} cases (${checks} flows)`
    )
  })
  const reasons = modes.flatMap(({ mode, results }) =>
    [...new Set(results.flatMap(({ skipped }) => skipped))].map(
      (reason) => `${mode} leaves out flows: ${reason}`,
    ),
  )
  return [...lines, '', ...totals, ...reasons, ''].join('\n')
}

/** Writes all results as JSON, for scripts. */
export function writeSummary(file: string, modes: readonly ModeResults[]): void {
  writeFileSync(file, `${JSON.stringify({ modes }, null, 2)}\n`)
}
