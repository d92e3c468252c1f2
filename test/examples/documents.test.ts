/** All that documents name exists: files, npm scripts, subcommands, flags, links, headings. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { createPlugin } from '../../lib/cli/kubectl/program.js'
import { createProgram } from '../../lib/cli/program.js'
import type { Subcommands } from '../../lib/cli/process.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))

const folders = ['docs', 'lib', 'test', 'scripts', 'examples', 'bench']
const files = [
  ...readdirSync(root).filter((name) => /\.(md|json)$/.test(name)),
  ...folders.flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }).map((path) =>
      join(folder, path),
    ),
  ),
]
const documents = files
  .filter((path) => path.endsWith('.md'))
  .map((path) => ({ path, ...partsOf(readFileSync(join(root, path), 'utf8')) }))

interface Parts {
  /** The text without code blocks. */
  readonly text: string
  /** The texts in backticks, and the lines of code blocks. */
  readonly code: readonly string[]
}

function partsOf(text: string): Parts {
  const blocks: string[] = []
  const outside = text.replace(/^```.*\n([^]*?)^```$/gm, (_, block: string) => {
    blocks.push(...block.split('\n'))
    return ''
  })
  const spans = Array.from(outside.matchAll(/`([^`]+)`/g), ([, span = '']) => span)
  return {
    text: outside,
    code: [...spans.map((span) => span.replace(/\s+/g, ' ')), ...blocks],
  }
}

/** The first group of each match in code of all documents, with its document. */
function named(pattern: RegExp): readonly (readonly [document: string, name: string])[] {
  return documents.flatMap(({ path, code }) =>
    code.flatMap((line) =>
      Array.from(line.matchAll(pattern), ([, name = '']) => [path, name] as const),
    ),
  )
}

t.test('the files and folders that documents name exist', (t) => {
  const pattern = /(?<![\w/.-])(?:build\/)?((?:lib|test|scripts|docs|examples|bench)\/[\w*/.-]*)/g
  const paths = documents.flatMap(({ path, text, code }) =>
    [text, ...code].flatMap((part) =>
      Array.from(part.matchAll(pattern), ([, name = '']) => [path, name] as const),
    ),
  )
  t.ok(paths.length > 80, `${paths.length} paths`)
  for (const [document, path] of paths) {
    const source = path.replace(/\.js$/, '.ts').replace(/[./]+$/, '')
    const escaped = source.replaceAll('.', '\\.').replace(/\*|\b[A-Z]{4,}\b/g, '[^/]+')
    const pattern = new RegExp(`^${escaped}$`)
    if (!folders.includes(source) && !files.some((file) => pattern.test(file)))
      t.fail(`${document} names ${path}`)
  }
  t.end()
})

t.test('the source files that documents name exist', (t) => {
  const names = named(/(?<![\w/{}.:-])((?:\.\.\/)*[\w-][\w/-]*\.(?:ts|mjs))\b/g)
  t.ok(names.length > 100)
  for (const [document, name] of names) {
    const home = dirname(document)
    // The README of a folder may name its files without the folder.
    const near = home.startsWith('lib/') && !/^(lib|test|scripts|bench)\//.test(name)
    const isThere = name.startsWith('../')
      ? existsSync(join(root, home, name))
      : files.some((file) => `/${file}`.endsWith(`/${name}`) && (!near || file.startsWith(home)))
    if (!isThere) t.fail(`${document} names ${name}`)
  }
  t.end()
})

t.test('the npm scripts that documents name exist', (t) => {
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    readonly scripts: Readonly<Record<string, string>>
  }
  const names = named(/\bnpm run (?:--silent )?([\w-]+)/g)
  t.ok(names.length > 10)
  for (const [document, name] of names)
    if (!(name in scripts)) t.fail(`${document} names npm run ${name}`)
  t.end()
})

const laboratory: Subcommands = {
  playground: async () => (await import('../../lib/lab/cli/playground.js')).addPlaygroundCommand,
  apiserver: async () => (await import('../../lib/lab/cli/apiserver.js')).addApiserverCommand,
}

/** The flags of a program by subcommand; those of the daemon have the empty name. */
async function flagsOf(more: Subcommands): Promise<ReadonlyMap<string, readonly string[]>> {
  const { program } = await createProgram(['--help'], more)
  return new Map(
    [program, ...program.commands].map((command) => [
      command === program ? '' : command.name(),
      [...command.options.flatMap(({ short, long }) => [short ?? '', long ?? '']), '--help'],
    ]),
  )
}

t.test('the subcommands and flags in documents exist in the program they call', async (t) => {
  const node = await flagsOf({})
  const whole = await flagsOf(laboratory)
  const programs = [
    { call: /(?:^|[\s`])kube-proxy((?: \S+)+)/, flags: node },
    { call: /build\/lib\/cli\/main\.js((?: \S+)+)/, flags: node },
    { call: /kube-proxy-ts((?: \S+)+)/, flags: whole },
    { call: /build\/lib\/main\.js((?: \S+)+)/, flags: whole },
  ]
  let calls = 0
  for (const { path, code } of documents) {
    for (const line of code.filter((line) => !/kubectl|docker|nft list/.test(line))) {
      for (const { call, flags } of programs) {
        const [first = '', ...rest] = (call.exec(line)?.[1] ?? '')
          .trim()
          .split(/ (?:\||#|>) /)[0]
          ?.split(' ') ?? ['']
        if (!/^(--)?[a-z][\w-]*(=.*)?$/.test(first)) continue
        calls++
        const subcommand = first.startsWith('--') ? '' : first
        const known = flags.get(subcommand)
        if (!known) t.fail(`${path} calls ${subcommand}: ${line}`)
        for (const word of [first, ...rest]) {
          const [flag = ''] = /^--[a-z][\w-]*/.exec(word) ?? []
          if (flag !== '' && known && !known.includes(flag))
            t.fail(`${path} gives ${flag} to '${subcommand}': ${line}`)
        }
      }
    }
  }
  t.ok(calls > 30, `${calls} calls`)
})

/** Flags of other programs that documents name without the program. */
const foreignFlags = [
  '--noflush',
  '--test',
  '--random-fully',
  '--quiet',
  '--skip-phases',
  '--resume',
  '--peer',
  '--seed',
  '--tools',
  '--max-old-space-size',
]

t.test('flags that documents name without a program exist', async (t) => {
  const { commands } = await createPlugin('')
  const plugin = commands.flatMap(({ options }) => options.map(({ long }) => long))
  const known = new Set([...[...(await flagsOf(laboratory)).values()].flat(), ...plugin])
  let flags = 0
  for (const { path, code } of documents) {
    for (const line of code) {
      const [, flag = ''] = /^(--[a-z][\w-]+)/.exec(line) ?? []
      if (flag === '') continue
      flags++
      if (!known.has(flag) && !foreignFlags.includes(flag)) t.fail(`${path} names ${line}`)
    }
  }
  t.ok(flags > 50, `${flags} flags`)
  t.end()
})

t.test('the figures of the modes in README are those of docs/benchmarks.md', (t) => {
  const read = (path: string) => readFileSync(join(root, path), 'utf8')
  const benchmarks = read('docs/benchmarks.md')
  const measured = (mode: string, what: string) => {
    const row = benchmarks.split(`| ours, ${mode}, 1,000 Services x 10: ${what} | `)[1] ?? ''
    return Number(row.slice(0, row.indexOf(' ')).replace(',', ''))
  }
  const rows = read('README.md').matchAll(
    /^\| `(\w+)` \|.*\| ([\d.]+) s \| (\d+) ms \| (\d+) MiB \|$/gm,
  )
  const modes = Array.from(rows, ([, mode = '', start, change, memory]) => {
    t.equal(start, (measured(mode, 'start until the newest Service answers') / 1000).toFixed(1))
    const p50 = measured(mode, 'change until a connection lands there, p50')
    t.equal(change, p50.toFixed(0), `${mode}: one change`)
    t.equal(memory, measured(mode, 'memory').toFixed(0), `${mode}: memory`)
    return mode
  })
  t.same(modes, ['nftables', 'iptables', 'userspace'])
  t.end()
})

t.test('links in documents lead to files and headings that exist', (t) => {
  let links = 0
  for (const { path, text } of documents) {
    for (const [, target = ''] of text.matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(target)) continue
      links++
      const [file = '', anchor] = target.split('#')
      const to = file === '' ? path : relative(root, resolve(root, dirname(path), file))
      if (!existsSync(join(root, to))) t.fail(`${path} links to ${target}`)
      const there = documents.find((document) => document.path === to)
      if (anchor !== undefined && !(there && headingsOf(there.text).includes(anchor)))
        t.fail(`${path} links to ${target}, and there is no such heading`)
    }
  }
  t.ok(links > 50)
  t.end()
})

t.test('each threat of SECURITY.md is at a boundary, and has tests', (t) => {
  const [, below = ''] = readFileSync(join(root, 'SECURITY.md'), 'utf8').split('## Threats')
  const [table = ''] = below.split('\n## ')
  const rows = table.split('\n').filter((line) => /^\| (?!boundary)/.test(line))
  const cells = rows.map((row) => row.split(' | '))
  t.same([...new Set(cells.map(([boundary]) => boundary))].sort(), [
    '| API',
    '| node',
    '| outside',
    '| page',
    '| pods',
  ])
  for (const row of cells) t.match(row.at(-1), /`test\/[^`]+\.test\.ts`/, row.join(' | '))
  t.end()
})

/** The names by which links find the headings of a page. */
function headingsOf(text: string): readonly string[] {
  return Array.from(text.matchAll(/^#+ (.*)$/gm), ([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  )
}
