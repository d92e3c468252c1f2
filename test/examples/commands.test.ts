/** Every command in the documents. Ours are parsed with their values; those without a node run. */
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { CommanderError, type Command as Program } from 'commander'
import t from 'tap'
import { createPlugin } from '../../lib/cli/kubectl/program.js'
import { createProgram } from '../../lib/cli/program.js'
import type { Subcommands } from '../../lib/cli/process.js'
import { parseFlags } from '../../lib/config/flags.js'
import { loadConfig } from '../../lib/config/load.js'
import {
  commands,
  documents,
  ourCommands,
  ours,
  root,
  withoutQuotes,
} from '../support/documents.js'

const laboratory: Subcommands = {
  playground: async () => (await import('../../lib/lab/cli/playground.js')).addPlaygroundCommand,
  apiserver: async () => (await import('../../lib/lab/cli/apiserver.js')).addApiserverCommand,
}

/** Parses these arguments without running anything. Throws if the program refuses them. */
async function parse(argv: readonly string[], more: Subcommands): Promise<void> {
  const { program, argv: rest } = await createProgram(argv, more)
  await parseOnly(program, rest, argv.length === 1)
  if (argv[0]?.startsWith('--') !== true || argv[0] === '--help' || argv[0] === '--version') return
  const given: [string, string][] = []
  for (const [index, argument] of rest.entries()) {
    const [, flag = '', value = rest[index + 1] ?? ''] =
      /^--([^=]+)(?:=(.*))?$/.exec(argument) ?? []
    if (flag !== '') given.push([flag, value])
  }
  loadConfig(parseFlags(given), undefined)
}

/** Parses only. The name of a command alone is a mention and not a call. */
async function parseOnly(program: Program, argv: readonly string[], isName: boolean) {
  for (const command of [program, ...program.commands]) {
    command.exitOverride().configureOutput({ writeOut: () => undefined, writeErr: () => undefined })
    command.action(() => undefined)
  }
  try {
    await program.parseAsync(argv, { from: 'user' })
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error
    const isMention = error.code === 'commander.missingArgument' && isName
    if (error.exitCode !== 0 && !isMention) throw error
  }
}

t.test('this program accepts every command of its documents, with its values', async (t) => {
  t.ok(ourCommands.length > 60, `${ourCommands.length} commands`)
  for (const { document, argv, isWhole } of ourCommands) {
    const refused = await parse(argv, isWhole ? laboratory : {}).then(
      () => undefined,
      (error: unknown) => String(error),
    )
    t.equal(refused, undefined, `${document}: ${argv.join(' ')}`)
  }
})

t.test('the plug-in of kubectl accepts every command of the documents', async (t) => {
  const calls = commands.filter(({ words }) => /^kubectl svcproxy\b/.test(words.join(' ')))
  t.ok(calls.length > 8, `${calls.length} commands`)
  for (const { document, words } of calls) {
    const argv = words.slice(2)
    const refused = await parseOnly(await createPlugin(''), argv, argv.length === 1).then(
      () => undefined,
      (error: unknown) => String(error),
    )
    t.equal(refused, undefined, `${document}: ${argv.join(' ')}`)
  }
})

t.test('commands that need neither root nor a cluster do what the documents say', (t) => {
  const safe = /^(render|explain) .*--manifests examples\/services|^--help$|^--version$/
  const lines = new Set(
    ourCommands.map(({ argv }) => argv.join(' ')).filter((line) => safe.test(line)),
  )
  t.ok(lines.size >= 7, `${lines.size} commands`)
  for (const line of lines) {
    const { status, stdout, stderr } = spawnSync(
      process.execPath,
      ['build/lib/cli/main.js', ...line.split(' ')],
      { cwd: root, encoding: 'utf8' },
    )
    t.equal(status, 0, `${line}: ${stderr}`)
    t.ok(stdout.length > 100, `${line} prints something`)
  }
  t.end()
})

/** Commands on our examples, with the lines that a document shows below them. */
const shown = documents.flatMap((document) => {
  const text = readFileSync(join(root, document), 'utf8')
  const block =
    /^```console\n\$ kube-proxy ((?:render|explain) .*--manifests examples\/services.*)\n([^]*?)^```$/gm
  return Array.from(text.matchAll(block), ([, line = '', output = '']) => ({
    document,
    line,
    output: output
      .split('\n')
      .filter((of) => of !== '' && !of.startsWith('$ ') && !of.includes('…')),
  })).filter(({ output }) => output.length > 0)
})

t.test('what documents show of our examples is what the program prints', (t) => {
  t.ok(shown.length > 0)
  for (const { document, line, output } of shown) {
    const argv = ['build/lib/cli/main.js', ...line.split(' ')]
    const { stdout } = spawnSync(process.execPath, argv, { cwd: root, encoding: 'utf8' })
    const printed = stdout.split('\n')
    for (const one of output) t.ok(printed.includes(one), `${document}: ${one}`)
  }
  t.end()
})

/** The programs of npm scripts that have flags. */
const ownUsage: Readonly<Record<string, string>> = {
  bench: 'scripts/bench.mjs',
  chaos: 'build/test/chaos/main.js',
  conformance: 'build/test/conformance/main.js',
  kernels: 'scripts/kernels.mjs',
}

t.test('the flags that documents and workflows give to npm scripts are in their usage', (t) => {
  const workflows = join(root, '.github/workflows')
  const inWorkflows = readdirSync(workflows).flatMap((document) =>
    Array.from(
      readFileSync(join(workflows, document), 'utf8').matchAll(/\bnpm run .*/g),
      ([line]) => ({ document, words: line.split(' ') }),
    ),
  )
  const spans = documents.flatMap((document) =>
    Array.from(
      readFileSync(join(root, document), 'utf8').matchAll(/`(npm run [^`]+)`/g),
      ([, line = '']) => ({ document, words: withoutQuotes(line).split(/\s+/) }),
    ),
  )
  let flags = 0
  for (const [script, file] of Object.entries(ownUsage)) {
    const options = { cwd: root, encoding: 'utf8' } as const
    const { stdout } = spawnSync(process.execPath, [file, '--help'], options)
    for (const { document, words } of [...commands, ...spans, ...inWorkflows]) {
      if (words[0] !== 'npm' || words[2] !== script) continue
      for (const flag of words.slice(4).filter((word) => word.startsWith('--'))) {
        flags++
        t.match(stdout, new RegExp(`${flag}\\b`), `${document}: ${words.join(' ')}`)
      }
    }
  }
  t.ok(flags > 20, `${flags} flags`)
  t.end()
})

/** Programs of others that the documents call. A mistyped name does not match. */
const foreign =
  /^(kubectl|helm|docker|kind|curl|npm|npx|nft|ip|ipset|ipvsadm|iptables(-save)?|conntrack|sysctl|modprobe|git|node|cd|sed|tr|test|grep|source|export|echo|printf|for|do|apt-get|systemctl|\w+=\S*)$/

t.test('every other command is of a program that the documents may call', (t) => {
  for (const { document, words } of commands) {
    const line = words.join(' ')
    if (ours.test(line)) continue
    t.match(words[0], foreign, `${document}: ${line}`)
  }
  t.end()
})

t.test('README is short, and the index leads to every page', (t) => {
  const lines = readFileSync(join(root, 'README.md'), 'utf8').split('\n').length
  t.ok(lines <= 150, `${lines} lines`)
  const index = readFileSync(join(root, 'docs/index.md'), 'utf8')
  for (const document of documents.filter((of) => /^docs\/[^/]+$/.test(of))) {
    const page = document.slice('docs/'.length)
    if (page !== 'index.md') t.ok(index.includes(`](${page})`), page)
  }
  t.end()
})
