// Writes the manual pages build/man/*.8 from the commands and flags that `--help` shows.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createProgram } from '../build/lib/cli/program.js'
import { shapeOf } from '../build/lib/cli/command-shape.js'

const fileOf = (path) => new URL(`../${path}`, import.meta.url)
const { version } = JSON.parse(readFileSync(fileOf('package.json'), 'utf8'))

/** The commands that only the whole package has. */
const laboratory = {
  playground: async () => (await import('../build/lib/lab/cli/playground.js')).addPlaygroundCommand,
  apiserver: async () => (await import('../build/lib/lab/cli/apiserver.js')).addApiserverCommand,
}

/** Text as troff prints it: no requests at the start of a line, and dashes that can be copied. */
const troff = (text) =>
  text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replaceAll(/^(?=[.'])/gm, '\\&')

const option = ({ term, description }) => ['.TP', `.B ${troff(term)}`, troff(description)]

/** Options below the headings that the help has. */
function options(all, heading) {
  const lines = []
  let group = ''
  for (const each of all) {
    if (each.group !== group && each.group !== '') lines.push(`${heading} ${troff(each.group)}`)
    group = each.group
    lines.push(...option(each))
  }
  return lines
}

function section(program, { name, usage, summary, options: own, notes }) {
  return [
    `.SS ${troff(name)}`,
    `.B ${troff(`${program} ${name}`)}`,
    troff(usage),
    '.PP',
    `${troff(summary)}.`,
    ...options(
      own.filter(({ names }) => !names.includes('--help')),
      '.PP\n.B',
    ),
    ...(notes === '' ? [] : ['.PP', '.nf', troff(notes), '.fi']),
  ]
}

function page({ name, summary, options: own, commands }) {
  return [
    `.TH ${name.toUpperCase()} 8 "" "kube\\-proxy\\-ts ${troff(version)}" "System administration"`,
    '.SH NAME',
    `${troff(name)} \\- ${troff('the Kubernetes Service proxy')}`,
    '.SH SYNOPSIS',
    `.B ${troff(name)}`,
    troff('[options]'),
    '.br',
    `.B ${troff(name)}`,
    troff('command [options] [argument]'),
    '.SH DESCRIPTION',
    troff(summary),
    '.SH COMMANDS',
    ...commands.filter((each) => each.name !== 'help').flatMap((each) => section(name, each)),
    '.SH OPTIONS',
    'These are for running the proxy.',
    ...options(own, '.SS'),
    '.SH EXIT STATUS',
    '.TP\n.B 0\nDone, or stopped by SIGTERM or SIGINT.',
    '.TP\n.B 1\nFailed.',
    '.TP\n.B 2\nA flag, a file or an argument is wrong; nothing was changed.',
    '',
  ].join('\n')
}

mkdirSync(fileOf('build/man'), { recursive: true })
for (const more of [{}, laboratory]) {
  const { program } = await createProgram(['--help'], more)
  const shape = shapeOf(program)
  writeFileSync(fileOf(`build/man/${shape.name}.8`), page(shape))
}
