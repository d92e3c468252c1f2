/**
 * A text from somewhere as people may see it: control characters, those beyond ASCII too, and
 * the ones that reorder text are spelled out, so that it stays on its line and as it is.
 */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu, (character) => {
    const code = character.codePointAt(0) ?? 0
    return character === '\n' ? '\\n' : `\\u${code.toString(16).padStart(4, '0')}`
  })
}
