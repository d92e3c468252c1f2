/** Every command in the documents. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = fileURLToPath(new URL('../../..', import.meta.url))
export const documents = [
  ...readdirSync(root).filter((name) => /^[A-Z]+\.md$/.test(name) && name !== 'CHANGELOG.md'),
  ...['docs', 'examples', 'lib', 'test'].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.md'))
      .map((name) => join(folder, name)),
  ),
]

interface Command {
  readonly document: string
  readonly words: readonly string[]
}

/** Lines with a prompt, all lines of shell blocks, and our commands in backticks. */
function linesOf(text: string): readonly string[] {
  const lines: string[] = []
  const outside = text
    .replace(/^```(\w*)\n([^]*?)^```$/gm, (_, language: string, block: string) => {
      const whole = block.replace(/\\\n\s*/g, ' ').split('\n')
      const isShell = language === 'sh' || language === 'bash'
      const commands = isShell
        ? whole.filter((line) => /^\w/.test(line))
        : language === 'console' || /^[$#] kube-proxy/m.test(block)
          ? whole.filter((line) => /^[$#] /.test(line)).map((line) => line.slice(2))
          : []
      lines.push(...commands)
      return ''
    })
    .replace(/\s+/g, ' ')
  const spans = Array.from(outside.matchAll(/`([^`]+)`/g), ([, span = '']) => span)
  lines.push(...spans.filter((span) => ours.test(span) && span.split(' ').length > 1))
  return lines
}

export const ours =
  /^(kube-proxy|kube-proxy-ts|npx kube-proxy-ts|node build\/lib\/(?:cli\/)?main\.js)(?= |$)/

/**
 * The simple commands of all documents, without comments and without parts for the reader to fill.
 */
export const commands: readonly Command[] = documents.flatMap((document) =>
  linesOf(readFileSync(join(root, document), 'utf8')).flatMap((line) => {
    const [command = ''] = line.split(/\s#\s|\s→/)
    return withoutQuotes(command)
      .replace(/ (?:>>?|<) \S+/g, '')
      .split(/ (?:\|\|?|&&) |; |\$\(/)
      .filter((simple) => !/…/.test(simple))
      .map((simple) => ({ document, words: simple.trim().split(/ +/) }))
  }),
)

/** The line with each quoted text as one word. */
export function withoutQuotes(line: string): string {
  return line.replace(/'[^']*'|"[^"]*"/g, 'quoted')
}

/** Words that the reader replaces, with a value that fits. */
const filledIn: Readonly<Record<string, string>> = { MODE: 'nftables', $MODE: 'nftables' }

/** Those of this program. `isWhole`: of the program of the npm package. */
export const ourCommands = commands.flatMap(({ document, words }) => {
  const [program] = ours.exec(words.join(' ')) ?? []
  if (program === undefined) return []
  const argv = words.slice(program.split(' ').length).map((word) => filledIn[word] ?? word)
  return [{ document, argv, isWhole: /-ts$|lib\/main/.test(program) }]
})
