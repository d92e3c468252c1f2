import { columns, type Column } from './columns.js'
import { coversSelection, modes } from './parts.js'
import type { KernelResult, ModeResult, Results, Seen } from './results.js'

const begin = '<!-- written by npm run kernels: begin -->'
const end = '<!-- written by npm run kernels: end -->'

/** The document with the tables of these results. */
export function withTable(document: string, { kernels }: Pick<Results, 'kernels'>): string {
  const before = document.slice(0, document.indexOf(begin) + begin.length)
  const after = document.slice(document.indexOf(end))
  return `${before}\n\n${kernels.map(textOf).join('\n')}\n${after}`
}

function textOf(kernel: KernelResult): string {
  const { release, version, suite, accelerator, date, versions } = kernel
  const tools = versions.map((text) => text.replace(/, protocol.*/, '')).join('; ')
  const inOrder = Object.entries(kernel.modes).sort(
    ([one], [other]) => modes.indexOf(one) - modes.indexOf(other),
  )
  const rows = inOrder.map(
    ([mode, result]) =>
      `| ${mode} | ${columns.map((column) => cellText(kernel, result, column)).join(' | ')} |`,
  )
  const notes = inOrder.flatMap(([mode, result]) => notesOf(mode, result))
  const lines = [...notes, ...(kernel.notes ?? [])].map((note) => `- ${note}`)
  return [
    `### Linux ${release}`,
    '',
    `${date}, package version ${version} of ${suite === 'own' ? 'the lists of the machine' : suite}, ${accelerator}. ${tools}.`,
    '',
    `| mode | ${columns.join(' | ')} |`,
    `|---|${columns.map(() => '---|').join('')}`,
    ...rows,
    '',
    ...lines,
    ...(lines.length > 0 ? [''] : []),
  ].join('\n')
}

function cellText(kernel: KernelResult, { cells, cases }: ModeResult, column: Column): string {
  const cell = cells[column]
  const own = cell ? [`${cell.seen}${when(kernel, [cell])}`] : []
  const counted =
    column === 'packets' && Object.keys(cases).length > 0 ? [packetsText(kernel, cases)] : []
  return [...counted, ...own].join('; ')
}

/** The day and the package of a result, if they differ from those of the last run. */
function when({ date, version }: KernelResult, seen: readonly Seen[]): string {
  const texts = seen.map((each) =>
    [
      ...(each.date === date ? [] : [each.date]),
      ...(each.version === version ? [] : [each.version]),
    ].join(' '),
  )
  const others = [...new Set(texts)].filter((text) => text !== '').sort()
  return others.length > 0 ? ` (${others.join(', ')})` : ''
}

function packetsText(kernel: KernelResult, cases: ModeResult['cases']): string {
  const all = Object.values(cases)
  const count = (outcome: string) => all.filter(({ seen }) => seen === outcome).length
  const [passed, failed, skipped] = ['passed', 'failed', 'skipped'].map(count)
  const words = [
    failed === 0 ? `${passed}` : `${failed} failed of ${(passed ?? 0) + (failed ?? 0)}`,
    ...(skipped === 0 ? [] : [`${skipped} left out`]),
  ]
  const soFar = coversSelection(Object.keys(cases)) ? '' : ' so far'
  return `${words.join(', ')}${soFar}${when(kernel, all)}`
}

function notesOf(mode: string, { cells, cases }: ModeResult): readonly string[] {
  const failed = Object.entries(cases).filter(([, { seen }]) => seen === 'failed')
  return [
    ...columns.flatMap((column) => cells[column]?.notes ?? []),
    ...failed.map(([name]) => `failed: ${mode} ${name}`),
  ]
}
