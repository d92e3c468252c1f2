import { Command, CommanderError, Option } from 'commander'
import { actionFlags, bareFlags, normalizeArguments } from '../config/flags.js'
import { groups } from '../config/key.js'
import { keyEntries, retiredFlags, type AnyKey } from '../config/keys.js'
import { adviceAbout, boolKind } from '../config/kinds.js'
import { nearest, printable } from '../state/names.js'
import {
  addSubcommands,
  calledAs,
  failureOf,
  versionText,
  withoutEquals,
  type Subcommands,
} from './process.js'
import { untilWritten } from './output.js'

const nodeCommands: Subcommands = {
  render: async () => (await import('./render.js')).addRenderCommand,
  explain: async () => (await import('./explain.js')).addExplainCommand,
  diff: async () => (await import('./diff.js')).addDiffCommand,
  trace: async () => (await import('./trace.js')).addTraceCommand,
  flows: async () => (await import('./flows.js')).addFlowsCommand,
  top: async () => (await import('./top.js')).addTopCommand,
  check: async () => (await import('./check.js')).addCheckCommand,
  cleanup: async () => (await import('./cleanup.js')).addCleanupCommand,
  completion: async () => (await import('./completion.js')).addCompletionCommand,
}

/** Subcommands that only the whole package has. */
const laboratory: readonly string[] = ['playground', 'apiserver']

/** Headings of the help, and the subcommands below each. */
const commandGroups: Readonly<Record<string, readonly string[]>> = {
  'Without a cluster:': ['render', ...laboratory],
  'On a live node:': ['explain', 'diff', 'trace', 'flows', 'top', 'check', 'cleanup'],
  'Completion:': ['completion'],
}

const summary =
  'The Kubernetes Service proxy. Without a subcommand it runs on this node until it is stopped.'

/** Runs one command and returns its exit code: 0 done, 1 failed, 2 wrong flag, file or argument. */
export function runCommandLine(argv: readonly string[], more: Subcommands = {}): Promise<number> {
  return untilWritten(say, () => run(argv, more))
}

async function run(argv: readonly string[], more: Subcommands): Promise<number> {
  let program: Command | undefined
  try {
    const created = await createProgram(argv, more)
    program = created.program
    await program.parseAsync(created.argv, { from: 'user' })
    return typeof process.exitCode === 'number' ? process.exitCode : 0
  } catch (error) {
    if (!(error instanceof CommanderError)) return report(error)
    // Commander has already printed the error, or the help.
    const called = program?.commands.find((command) => command.name() === argv[0])
    const hint = program && hintAbout(error.message, program, called)
    if (hint !== undefined) say(hint)
    return error.exitCode === 0 ? 0 : 2
  }
}

function report(error: unknown): number {
  const { exitCode, texts } = failureOf(error)
  for (const text of texts) say(text)
  return exitCode
}

function say(text: string): void {
  for (const line of text.split('\n')) process.stderr.write(`kube-proxy: ${printable(line)}\n`)
}

/** The command line for commander, and the arguments in the form that commander accepts. */
export async function createProgram(
  argv: readonly string[],
  more: Subcommands = {},
): Promise<{ readonly program: Command; readonly argv: readonly string[] }> {
  const commands = { ...nodeCommands, ...more }
  const given: [string, string][] = []
  // With more commands than on a node, this is the program of the npm package.
  const isWhole = Object.keys(more).length > 0
  const program = new Command(isWhole ? 'kube-proxy-ts' : calledAs())
    .description(summary)
    .enablePositionalOptions()
    .exitOverride()
    .allowExcessArguments(false)
    .showSuggestionAfterError(false)
    .configureHelp({ optionTerm: termOf })
    .action(async () => (await import('./run.js')).runCommand(given))
  addFlags(program, given)
  const [first = ''] = argv
  const isSubcommand = Object.hasOwn(commands, first)
  const named = first === 'help' ? (argv[1] ?? '') : first
  if (named !== '' && !named.startsWith('-') && !Object.hasOwn(commands, named)) {
    program.error(`error: unknown command '${named}'; ${commandFor(named, Object.keys(commands))}`)
  }
  // Commander makes the command `help` only where the program itself does nothing.
  program.helpCommand(first === 'help')
  if (isSubcommand || first === 'help' || argv.includes('--help') || argv.includes('-h')) {
    // A script for completion needs all commands.
    await addSubcommands(program, commands, first === 'completion' ? '' : first)
    for (const command of program.commands) {
      // Otherwise it is below the heading that it has in the program.
      command.helpOption('-h, --help', 'Print this help')
      const names = Object.entries(commandGroups)
      const [heading] = names.find(([, group]) => group.includes(command.name())) ?? []
      if (heading !== undefined) command.helpGroup(heading)
    }
  }
  return { program, argv: isSubcommand ? withoutEquals(argv) : normalizeArguments(argv) }
}

function commandFor(unknown: string, commands: readonly string[]): string {
  if (laboratory.includes(unknown)) {
    return `${unknown} is only in the npm package: npx kube-proxy-ts ${unknown}`
  }
  const near = nearest(unknown, commands)
  return near === undefined ? `the commands are ${commands.join(', ')}` : `did you mean ${near}?`
}

/** Advice about an error of commander, which gives none for `--flag=value`. */
function hintAbout(
  message: string,
  program: Command,
  command: Command | undefined,
): string | undefined {
  const name = command ? `${program.name()} ${command.name()}` : program.name()
  if (command && /missing required argument|too many arguments/.test(message)) {
    return `usage: ${name} ${command.usage()}`
  }
  if (message.includes('too many arguments')) return hintAboutWord(program)
  const [, chosen, value = ''] = /--([^ ]+) <[^>]*>' argument '(.*)' is invalid/.exec(message) ?? []
  const choice = keyEntries.find(([, { flags }]) => flags.some((each) => each === chosen))?.[1]
  if (choice) return adviceAbout(value, choice.kind)
  if (!message.includes('unknown option')) return undefined
  const flag = /unknown option '--([^=']+)/.exec(message)?.[1]
  if (flag === undefined) return `${name} --help lists the flags`
  const flags = [...keyEntries.flatMap(([, key]) => key.flags), ...actionFlags.map((of) => of.flag)]
  const known = command?.options.flatMap(longFlags) ?? flags
  if (command && flags.includes(flag)) {
    const elsewhere = known.includes('config')
      ? '; set its key in the file of --config instead'
      : ''
    return `--${flag} is for running the proxy, not for ${command.name()}${elsewhere}`
  }
  const near = nearest(flag, known)
  return near === undefined ? `${name} --help lists the flags` : `did you mean --${near}?`
}

/** Advice about a word between the flags of the daemon. */
function hintAboutWord(program: Command): string {
  const [word = ''] = program.args
  const isCommand = Object.values(commandGroups).some((group) => group.includes(word))
  return isCommand
    ? `the command comes before its flags: ${program.name()} ${word} …`
    : `${JSON.stringify(word)} belongs to no flag; a flag that is on or off takes true or false behind =, as in --flows=true`
}

const longFlags = ({ short, long }: Option) =>
  [short, long].flatMap((name) => (name?.startsWith('--') === true ? name.slice(2) : []))

/** Adds the flags of the run command from the table of configuration keys, under its headings. */
function addFlags(program: Command, given: [string, string][]): void {
  const optionOf = (flag: string, names: string, description?: string) =>
    new Option(`${names} <value>`, description).argParser((text: string) => {
      given.push([flag, text])
      return text
    })
  const seen = new Set<string>()
  const add = (flag: string, description: string, group: string) => {
    if (seen.has(flag)) return
    seen.add(flag)
    const short = flag === 'v' ? '-v, ' : ''
    program.addOption(optionOf(flag, `${short}--${flag}`, description).helpGroup(`${group}:`))
  }
  for (const { flag, doc } of actionFlags) add(flag, doc, 'Configuration')
  program.optionsGroup('Configuration:')
  program.version(versionText(), '--version', 'Print the version')
  program.helpOption('-h, --help', 'Print this help')
  for (const group of [...groups, noEffectGroup]) {
    for (const [, key] of keyEntries) {
      if ((key.noEffect === undefined ? key.group : noEffectGroup) !== group) continue
      for (const flag of key.flags) add(flag, describe(key), group)
    }
  }
  for (const flag of Object.keys(retiredFlags)) {
    program.addOption(optionOf(flag, `--${flag}`).hideHelp())
  }
}

/** A section of its own, so that the other sections hold only flags with an effect. */
const noEffectGroup = 'Accepted, without effect here'

function describe(key: AnyKey): string {
  const initial = JSON.stringify(key.kind.toYaml(key.initial)).replaceAll('"', '')
  const isWorthSaying = !['', '0', '0s', '[]', '{}', 'false'].includes(initial)
  const choices = key.kind.choices?.filter((choice) => choice !== '').join(', ')
  return [
    key.doc,
    choices === undefined ? '' : ` [${choices}]`,
    isWorthSaying && key.noEffect === undefined ? ` (default ${initial})` : '',
  ].join('')
}

/** Shows `--masquerade-all` without `<value>`, and for other flags a word for the kind of value. */
function termOf(option: Option): string {
  const flag = option.long?.slice(2) ?? ''
  if (bareFlags.has(flag) || !option.required) return option.flags.replace(' <value>', '')
  const key = keyEntries.find(([, { flags }]) => flags.includes(flag))?.[1]
  const word = key && key.kind !== boolKind ? metavariable(key) : 'value'
  return option.flags.replace('<value>', `<${word}>`)
}

function metavariable(key: AnyKey): string {
  const { name } = key.kind
  if (name.startsWith('a duration')) return 'duration'
  if (name.includes('number')) return 'n'
  if (name.startsWith('a list of strings')) return 'list'
  return key.kind.choices ? 'name' : 'value'
}
