/**
 * An untrusted text that is safe to print. Control characters and characters that reorder text are
 * written as escapes, so that the text stays on one line and looks as it is.
 */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu, (character) => {
    const code = character.codePointAt(0) ?? 0
    return character === '\n' ? '\\n' : `\\u${code.toString(16).padStart(4, '0')}`
  })
}
