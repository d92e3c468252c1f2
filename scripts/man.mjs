// Writes the manual pages in build/man from the commands and flags that `--help` shows.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createPlugin } from '../build/lib/cli/kubectl/program.js'
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

function page({ name, summary, options: own, commands }, about) {
  const head = `${about.title} ${about.section} "" "kube\\-proxy\\-ts ${troff(version)}" "${about.book}"`
  return [
    `.TH ${head}`,
    '.SH NAME',
    `${troff(about.title.toLowerCase())} \\- ${troff(about.what)}`,
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
    about.options,
    ...options(own, '.SS'),
    '.SH EXIT STATUS',
    ...about.exits.map((text, code) => `.TP\n.B ${code}\n${troff(text)}`),
    '',
  ].join('\n')
}

function write(shape, about) {
  const file = `build/man/${about.title.toLowerCase()}.${about.section}`
  writeFileSync(fileOf(file), page(shape, about))
}

mkdirSync(fileOf('build/man'), { recursive: true })
for (const more of [{}, laboratory]) {
  const shape = shapeOf((await createProgram(['--help'], more)).program)
  write(shape, {
    ...{ title: shape.name.toUpperCase(), section: 8, book: 'System administration' },
    what: 'the Kubernetes Service proxy',
    options: 'These are for running the proxy.',
    exits: [
      'Done, or stopped by SIGTERM, SIGINT or SIGHUP.',
      'Failed.',
      'A flag, a file or an argument is wrong; nothing was changed.',
    ],
  })
}
write(shapeOf(await createPlugin(version)), {
  ...{ title: 'KUBECTL-SVCPROXY', section: 1, book: 'User commands' },
  what: 'asks the Service proxies of a cluster',
  options: 'These work without a command.',
  exits: [
    'Done.',
    'Failed, or something is wrong on a node, or a proxy did not answer.',
    'A flag or an argument is wrong, or there is no such proxy.',
  ],
})
