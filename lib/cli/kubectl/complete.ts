import { createPlugin } from './program.js'
import { shapeOf, type CommandShape, type OptionShape } from '../command-shape.js'

/** The last line for kubectl. It says whether the shell may offer files, too. */
const directives = { words: ':4', files: ':0' } as const

/** Prints the answer to kubectl. */
export async function runCompletion(typed: readonly string[]): Promise<void> {
  process.stdout.write(completions(shapeOf(await createPlugin('')), typed))
}

/**
 * The words that kubectl offers after `kubectl svcproxy`, each with its meaning. `typed` are the
 * words so far; the last one is unfinished and may be empty.
 */
function completions(program: CommandShape, typed: readonly string[]): string {
  const [first = ''] = typed
  const word = typed.at(-1) ?? ''
  const isFirst = typed.length <= 1
  const command = program.commands.find(({ name }) => !isFirst && name === first) ?? program
  const assigned = /^(--[^=]+)=/.exec(word)
  const named = assigned?.[1] ?? typed.at(-2) ?? ''
  const option = command.options.find(({ names }) => names.includes(named))
  if (option?.takesValue === true) return valuesOf(option, assigned?.[0] ?? '', word)
  const flags = command.options.flatMap(({ names, description }) =>
    names.map((name) => [name, description] as const),
  )
  const words = isFirst
    ? program.commands.map(({ name, summary }) => [name, summary] as const)
    : command.choices.map((name) => [name, ''] as const)
  return answer(word.startsWith('-') ? flags : words, word, 'words')
}

function valuesOf({ choices }: OptionShape, before: string, word: string): string {
  const words = choices.map((value) => [`${before}${value}`, ''] as const)
  return answer(words, word, choices.length === 0 ? 'files' : 'words')
}

function answer(
  words: readonly (readonly [word: string, meaning: string])[],
  begin: string,
  more: keyof typeof directives,
): string {
  const fitting = words.filter(([word]) => word.startsWith(begin))
  const lines = fitting.map(([word, meaning]) => (meaning === '' ? word : `${word}\t${meaning}`))
  return [...lines, directives[more], ''].join('\n')
}
