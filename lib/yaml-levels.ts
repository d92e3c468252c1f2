import { Lexer } from 'yaml'

/** Objects and settings that people write have far fewer levels. */
const deepest = 100

/**
 * Where a YAML text has too many levels, and why that is wrong; undefined if it has few.
 * The reader of YAML calls itself for each level. Where the stack overflows within a regular
 * expression, V8 ends the whole process instead of throwing an error.
 */
export function tooDeep(text: string, file?: string): string | undefined {
  const line = deepIndent(text) ?? (mayHaveDeepBrackets(text) ? deepBracket(text) : undefined)
  if (line === undefined) return undefined
  const place = file === undefined ? `line ${line}` : `${file}:${line}`
  return `${place}: more than ${deepest} levels are nested`
}

/** The first line that is the innermost of too many indented ones. */
function deepIndent(text: string): number | undefined {
  const columns: number[] = []
  let line = 1
  for (let start = 0; start < text.length; line++) {
    const end = text.indexOf('\n', start)
    const next = end < 0 ? text.length : end + 1
    let isLevel = true
    for (let at = start; at < next && isLevel; at++) {
      const character = text[at]
      if (character === ' ' || character === '\t') continue
      if (character === '\n' || character === '\r') break
      while (columns.length > 0 && (columns.at(-1) ?? 0) >= at - start) columns.pop()
      if (columns.push(at - start) > deepest) return line
      // `- - x` are three levels in one line.
      isLevel = '-?:'.includes(character ?? '') && /\s/.test(text[at + 1] ?? '')
    }
    start = next
  }
  return undefined
}

/** Costs little, but also counts brackets that are part of a text. */
function mayHaveDeepBrackets(text: string): boolean {
  let depth = 0
  for (const [bracket] of text.matchAll(/[[{}\]]/g)) {
    depth = Math.max(0, depth + stepOf(bracket))
    if (depth > deepest) return true
  }
  return false
}

function deepBracket(text: string): number | undefined {
  let depth = 0
  let line = 1
  for (const token of new Lexer().lex(text)) {
    depth = Math.max(0, depth + stepOf(token))
    if (depth > deepest) return line
    for (const character of token) if (character === '\n') line++
  }
  return undefined
}

function stepOf(token: string): -1 | 0 | 1 {
  return token === '[' || token === '{' ? 1 : token === ']' || token === '}' ? -1 : 0
}
