import { Command, CommanderError } from 'commander'
import { untilWritten } from '../output.js'
import { printable } from '../../state/names.js'
import {
  addSubcommands,
  failureOf,
  versionText,
  withoutEquals,
  type Subcommands,
} from '../process.js'

const notes = `
Everything is read through the API server, by kubectl, with your kubeconfig and your rights: get on
pods/proxy in the namespace of the proxy. Nothing is changed.
Exit codes: 0: done. 1: failed, or something is wrong on a node. 2: a wrong flag or argument.`

const commands: Subcommands = {
  explain: async () => (await import('./explain.js')).addExplainCommand,
  flows: async () => (await import('./flows.js')).addFlowsCommand,
  top: async () => (await import('./top.js')).addTopCommand,
  trace: async () => (await import('./trace.js')).addTraceCommand,
  check: async () => (await import('./check.js')).addCheckCommand,
  diff: async () => (await import('./check.js')).addDiffCommand,
}

/** The plug-in with the command of this name, or with all if there is none. */
export async function createPlugin(version: string, name = ''): Promise<Command> {
  const program = new Command('kubectl svcproxy')
    .description('What the Service proxies of the nodes do with connections.')
    .version(version, '--version', 'Print the version')
    .addHelpText('after', notes)
    .exitOverride()
  await addSubcommands(program, commands, name)
  return program
}

/**
 * Runs the plug-in and returns its exit code. The caller gives the version where the files of the
 * package are missing.
 */
export function runPlugin(argv: readonly string[], version = versionText()): Promise<number> {
  return untilWritten(say, () => run(argv, version))
}

async function run(argv: readonly string[], version: string): Promise<number> {
  try {
    const program = await createPlugin(version, argv[0])
    if (argv.length === 0) program.outputHelp()
    else await program.parseAsync(withoutEquals(argv), { from: 'user' })
    return typeof process.exitCode === 'number' ? process.exitCode : 0
  } catch (error) {
    if (error instanceof CommanderError) {
      // Commander has already printed its error, or the help.
      const hint = await hintAbout(error, argv)
      if (hint !== undefined) process.stderr.write(`${hint}\n`)
      return error.exitCode === 0 ? 0 : 2
    }
    const { exitCode, texts } = failureOf(error)
    for (const text of texts) say(text)
    return exitCode
  }
}

function say(text: string): void {
  process.stderr.write(`error: ${text.split('\n').map(printable).join('\n')}\n`)
}

async function hintAbout(
  { message }: CommanderError,
  [name = '']: readonly string[],
): Promise<string | undefined> {
  if (message.includes('unknown command')) {
    return `the commands are ${Object.keys(commands).join(', ')}`
  }
  // As kubectl has it for its own commands.
  if (message.includes('unknown option') && name.startsWith('-')) {
    return 'flags come behind the command, as in kubectl svcproxy check --context NAME'
  }
  const plugin = await createPlugin('', name)
  const command = plugin.commands.find((each) => each.name() === name)
  if (!command) return undefined
  if (message.includes('unknown option')) {
    return `kubectl svcproxy ${name} --help lists the flags`
  }
  if (!/missing required argument|too many arguments/.test(message)) return undefined
  return `usage: kubectl svcproxy ${name} ${command.usage()}`
}
