import { counted } from '../state/names.js'
import { setTimeout as delay } from 'node:timers/promises'
import type { Command } from 'commander'
import { ConfigError, KernelError, messageOf, SourceError } from '../errors.js'
import {
  differencesJson,
  differencesText,
  type FamilyDifferences,
  lastingDifferences,
} from '../inspect/differences.js'
import { otherRules } from '../inspect/obstacles.js'
import { startProgramsQuickly } from '../kernel/posix-spawn.js'
import { calledAs, isAboutKoffi, withoutKoffi } from './process.js'
import { addOutputOptions, printed, type OutputFlags } from './shared-options.js'
import { addNodeOptions, secondLookAfterMs, seeNode, type NodeFlags } from './seen-node.js'
import { modeLoaders } from '../modes/registry.js'
import type { ModeName } from '../config/config.js'
import type { ModeDefinition } from '../modes/mode.js'

/** Adds `kube-proxy diff`, which compares what the kernel holds with what it should hold. */
export function addDiffCommand(program: Command): void {
  const command = program
    .command('diff')
    .description('compare what the kernel holds with what it should hold; needs root')
  addOutputOptions(addNodeOptions(command))
    .addHelpText(
      'after',
      '\nExit codes: 0: no difference. 1: some differences. 2: the comparison failed.',
    )
    .action(diff)
}

async function diff(flags: NodeFlags & OutputFlags): Promise<void> {
  await startProgramsQuickly()
  let looked = await look(flags)
  tellWarnings(looked.warnings)
  const found = countOf(looked.families)
  if (found > 0) {
    await delay(secondLookAfterMs)
    looked = lasting(looked, await look(flags))
    const gone = found - countOf(looked.families)
    if (gone > 0)
      process.stderr.write(
        `${gone} of ${counted(found, 'difference')} ${gone === 1 ? 'was' : 'were'} gone a second later\n`,
      )
  }
  const { mode, families } = looked
  for (const { family } of families) {
    // They are no differences: what belongs to this mode may be complete.
    for (const text of await otherRules(mode, family)) process.stderr.write(`${text}\n`)
  }
  process.stdout.write(
    printed(flags, {
      data: differencesJson(mode, families),
      text: differencesText(mode, families),
    }),
  )
  if (countOf(families) > 0) process.exitCode = 1
}

interface Look {
  readonly mode: ModeName
  readonly families: readonly FamilyDifferences[]
  readonly warnings: readonly string[]
}

/** Reads the objects, then the kernel. */
async function look(flags: NodeFlags): Promise<Look> {
  const seen = await seeNode(flags).catch((error: unknown) => {
    throw error instanceof SourceError ? new ConfigError(error.message, { cause: error }) : error
  })
  const { mode, config, states, warnings } = seen
  const definition: ModeDefinition = await modeLoaders[mode]().catch((error: unknown) => {
    const reason = isAboutKoffi(error) ? withoutKoffi : messageOf(error)
    throw new ConfigError(reason, { cause: error })
  })
  const families: FamilyDifferences[] = []
  for (const state of states) {
    try {
      const settled = (await definition.settle?.(config, state.family)) ?? config
      const differences = await definition.differences(state, settled)
      families.push({ family: state.family, services: state.services.size, differences })
    } catch (error) {
      throw unreadable(error, mode)
    }
  }
  return { mode, families, warnings }
}

/** They are about what Services ask for, not about the kernel, so all of them would hide the rest. */
function tellWarnings({ length }: readonly string[]): void {
  if (length === 0) return
  process.stderr.write(
    `${counted(length, 'warning')} about objects; \`${calledAs()} explain SERVICE\` shows those of one\n`,
  )
}

/** What the second look found, without what the first did not. */
function lasting(first: Look, second: Look): Look {
  const before = new Map(first.families.map(({ family, differences }) => [family, differences]))
  const families = second.families.map(({ differences, ...rest }) => ({
    ...rest,
    differences: lastingDifferences(before.get(rest.family) ?? [], differences),
  }))
  return { ...second, families }
}

const countOf = (families: readonly FamilyDifferences[]) =>
  families.reduce((total, { differences }) => total + differences.length, 0)

/** Exit code 1 means a difference, so a failed comparison is a ConfigError, which exits with 2. */
function unreadable(error: unknown, mode: string): ConfigError {
  const isDenied = error instanceof KernelError && error.kind === 'denied'
  const isAdvised = messageOf(error).includes('as root')
  const advice = isAdvised
    ? ''
    : isDenied
      ? '; run it as root, or with CAP_NET_ADMIN'
      : `; \`${calledAs()} check\` tells whether this node can run ${mode} mode`
  return new ConfigError(`${messageOf(error)}${advice}`, { cause: error })
}
