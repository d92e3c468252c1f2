import { messages, type MessageField } from '../protobuf/messages.js'
import { networkWords } from './network-words.js'
import { objectWords } from './object-words.js'
import { workloadWords } from './workload-words.js'

export type Field = Pick<MessageField, 'name' | 'type'>

/** The words for a kind, or for a part of one. */
interface Block {
  readonly words: string
  readonly wordsOf: ReadonlyMap<string, string>
  /** Fields that the table of messages does not have, because no client sends them in protobuf. */
  readonly further: readonly Field[]
}

export const blocks: ReadonlyMap<string, Block> = new Map(
  [objectWords, networkWords, workloadWords].flatMap((table) =>
    table
      .trim()
      .split(/\n(?! )/)
      .map(parseBlock),
  ),
)

function parseBlock(text: string): readonly [string, Block] {
  const [head, ...lines] = text.split(/\n */).map((line) => {
    const [, name = '', type, words = ''] = /^(\S+?)(?: (\S+))?: (.*)$/.exec(line) ?? []
    return { name, type, words }
  })
  const further = lines.flatMap(({ name, type }) => (type === undefined ? [] : [{ name, type }]))
  const wordsOf = new Map(lines.map(({ name, words }) => [name, words]))
  return [head?.name ?? '', { words: head?.words ?? '', wordsOf, further }]
}

/** Whether this server knows a kind, or a part of one. */
export function isKnown(name: string): boolean {
  return messages.has(name) || blocks.has(name)
}

export function fieldsOf(name: string): readonly Field[] {
  return [...(messages.get(name) ?? []), ...(blocks.get(name)?.further ?? [])]
}

export function wordsOf(name: string): string | undefined {
  return blocks.get(name)?.words
}

/** The words for a field. A field without words of its own has those of `*`. */
export function fieldWordsOf(name: string, field: string): string | undefined {
  return blocks.get(name)?.wordsOf.get(field) ?? blocks.get('*')?.wordsOf.get(field)
}
