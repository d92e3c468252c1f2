import type { Command, Option } from 'commander'
import { bareFlags } from '../config/flags.js'
import { keyEntries } from '../config/keys.js'

/** The description of a command for a shell or a manual. It is made from the data of `--help`. */
export interface CommandShape {
  readonly name: string
  readonly summary: string
  /** The words behind the name, such as `[options] <target>`. */
  readonly usage: string
  readonly options: readonly OptionShape[]
  /** The values of its argument; empty when they are not known. */
  readonly choices: readonly string[]
  readonly commands: readonly CommandShape[]
  /** The text of the help below the options. */
  readonly notes: string
}

export interface OptionShape {
  /** The names, with their dashes. */
  readonly names: readonly string[]
  /** The option as the help shows it, such as `--port <number>`. */
  readonly term: string
  readonly description: string
  /** The heading in the help; empty without one. */
  readonly group: string
  readonly takesValue: boolean
  /** Empty when any value may be right. */
  readonly choices: readonly string[]
}

export function shapeOf(command: Command): CommandShape {
  const help = command.createHelp()
  return {
    name: command.name(),
    summary: command.description(),
    usage: command.usage(),
    options: help.visibleOptions(command).map((option) => ({
      names: [option.short, option.long].filter((name) => name !== undefined),
      term: help.optionTerm(option),
      description: help.optionDescription(option),
      group: (option.helpGroupHeading ?? '').replace(/:$/, ''),
      takesValue: option.required && !bareFlags.has(option.long?.slice(2) ?? ''),
      choices: choicesOf(option),
    })),
    choices: command.registeredArguments.flatMap(({ argChoices }) => argChoices ?? []),
    commands: help.visibleCommands(command).map(shapeOf),
    notes: notesOf(command),
  }
}

function choicesOf({ long, argChoices }: Option): readonly string[] {
  const key = keyEntries.find(([, { flags }]) => flags.some((flag) => `--${flag}` === long))?.[1]
  const choices: readonly unknown[] = argChoices ?? key?.kind.choices ?? []
  return choices.map(String).filter((choice) => choice !== '')
}

function notesOf(command: Command): string {
  let text = ''
  command.configureOutput({ writeOut: (piece) => (text += piece) }).outputHelp()
  return text.slice(command.helpInformation().length).trim()
}
