import { columns } from './columns.js'
import type { Results, RunResult } from './results.js'

const begin = '<!-- written by npm run kernels: begin -->'
const end = '<!-- written by npm run kernels: end -->'

/** The document with the results of all runs that are kept. */
export function withTable(document: string, { runs }: Pick<Results, 'runs'>): string {
  const before = document.slice(0, document.indexOf(begin) + begin.length)
  const after = document.slice(document.indexOf(end))
  return `${before}\n\n${runs.map(textOf).join('\n')}\n${after}`
}

function textOf(run: RunResult): string {
  const { release, version, suite, accelerator, date, minutes, versions, notes, modes } = run
  const tools = versions.map((text) => text.replace(/, protocol.*/, '')).join('; ')
  const rows = Object.entries(modes).map(
    ([mode, cells]) => `| ${mode} | ${columns.map((column) => cells[column] ?? '').join(' | ')} |`,
  )
  return [
    `### Linux ${release}`,
    '',
    `${date}, package version ${version} of ${suite === 'own' ? 'the lists of the machine' : suite}, ` +
      `${accelerator}; the last run took ${minutes} minutes. ${tools}.`,
    '',
    `| mode | ${columns.join(' | ')} |`,
    `|---|${columns.map(() => '---|').join('')}`,
    ...rows,
    '',
    ...notes.map((note) => `- ${note}`),
    ...(notes.length > 0 ? [''] : []),
  ].join('\n')
}
