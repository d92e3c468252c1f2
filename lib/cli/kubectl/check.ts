import type { Command } from 'commander'
import { addNamedOptions, outputOf, type NamedFlags } from './names.js'
import { answersOf, askAll, findProxies, onNode, type RemoteProxy } from './proxies.js'
import { Kubectl } from './kubectl.js'
import { printable } from '../../state/names.js'
import { printed } from '../shared-options.js'
import { SourceError } from '../../errors.js'
import type { StatusLine } from '../../observe/mode-status.js'

/** `check` and `diff`: the status that proxies report at /healthz?verbose. */

interface ProxyStatus {
  readonly node: string
  readonly pod: string
  readonly mode: string
  readonly isGood: boolean
  readonly lines: readonly StatusLine[]
}

const exitCodes =
  '\nExit codes: 0: all is well. 1: something is not, or a proxy does not answer. 2: a wrong flag.'

/** Adds `kubectl svcproxy check`: the mode of each proxy, and what fails in it. */
export function addCheckCommand(program: Command): void {
  const command = program
    .command('check')
    .description('show which mode each proxy runs, and what fails in it')
  addNamedOptions(command, 'one')
    .addHelpText('after', exitCodes)
    .action(async (flags: NamedFlags) => {
      await show(flags, () => true)
    })
}

const aboutRules = /(?: syncs| service ports|^foreign changes)$/

const diffNotes = `
The proxies read their own rules again and again, repair changes of others, and report them here. Only
\`kube-proxy diff\` on the node compares every rule as it is now.
${exitCodes}`

/**
 * Adds `kubectl svcproxy diff`: differences in the kernels of nodes, as their proxies found them.
 */
export function addDiffCommand(program: Command): void {
  const command = program
    .command('diff')
    .description('show where the kernel of a node differs from what it should hold')
  addNamedOptions(command, 'one')
    .addHelpText('after', diffNotes)
    .action(async (flags: NamedFlags) => {
      const [first] = await show(flags, ({ name }) => aboutRules.test(name))
      if (first) process.stderr.write(`${onNode(first, 'diff', 'every rule as it is now')}\n`)
    })
}

async function show(
  flags: NamedFlags,
  isAsked: (line: StatusLine) => boolean,
): Promise<readonly RemoteProxy[]> {
  const kubectl = new Kubectl(flags)
  const proxies = await findProxies(kubectl, flags)
  const answers = answersOf(await askAll(proxies, statusOf))
  const statuses = answers.map(({ proxy, answer }): ProxyStatus => {
    const lines = answer.filter(isAsked)
    const mode = answer.find(({ name }) => name === 'mode')?.text ?? ''
    const isGood = lines.every((line) => line.isGood)
    return { node: proxy.node, pod: proxy.pod, mode: mode.split(':', 1)[0] ?? '', isGood, lines }
  })
  const text =
    flags.output === 'name'
      ? statuses.map(({ pod }) => `pod/${printable(pod)}\n`).join('')
      : tableOf(statuses, flags.output === 'wide')
  process.stdout.write(printed(outputOf(flags), { data: statuses, text }))
  if (statuses.some(({ isGood }) => !isGood)) process.exitCode = 1
  return answers.map(({ proxy }) => proxy)
}

async function statusOf(proxy: RemoteProxy): Promise<readonly StatusLine[]> {
  const text = await proxy.get('/healthz?verbose')
  const lines = Array.from(
    text.matchAll(/^\[([+-])\]([^:\n]+): (.*)$/gm),
    ([, mark, name = '', rest = '']) => ({ name, isGood: mark === '+', text: rest }),
  )
  if (lines.length > 0) return lines
  throw new SourceError(`${proxy.name} is of a version that tells nothing at /healthz?verbose`)
}

/** A line for each proxy, and below it the lines that fail; with `wide` the good ones, too. */
function tableOf(statuses: readonly ProxyStatus[], isWide: boolean): string {
  const rows = statuses.map(({ node, pod, mode, isGood }) => [
    node,
    pod,
    mode,
    isGood ? 'ok' : 'FAILS',
  ])
  const heads = ['NODE', 'POD', 'MODE', 'STATUS']
  const widths = heads.map((head, index) =>
    Math.max(...[heads, ...rows].map((row) => printable(row[index] ?? head).length)),
  )
  const line = (row: readonly string[]) =>
    row
      .map((cell, index) => printable(cell).padEnd(widths[index] ?? 0))
      .join('   ')
      .trimEnd()
  return [
    line(heads),
    ...statuses.flatMap(({ lines }, index) => [
      line(rows[index] ?? []),
      ...lines
        .filter(({ isGood }) => isWide || !isGood)
        .map(({ name, isGood, text }) =>
          printable(`  ${isGood ? 'ok   ' : 'FAILS'}  ${name}: ${text}`),
        ),
    ]),
    '',
  ].join('\n')
}
