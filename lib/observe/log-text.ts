import { asObject, asString } from '../state/json.js'
import { printable } from '../state/names.js'

/** Log lines as text. */

const colours: Readonly<Record<string, string>> = {
  debug: '\u001b[90m',
  trace: '\u001b[90m',
  info: '\u001b[32m',
  warn: '\u001b[33m',
  error: '\u001b[31m',
}

/**
 * One line of pino's JSON as text: time, level, message, fields as `key=value`. Hostile characters
 * are escaped, so an entry is always one line, and no escape sequence reaches a terminal.
 */
export function formatLine(json: string, isTerminal: boolean): string {
  const { level, time, msg, ...fields } = JSON.parse(json) as Record<string, unknown>
  const when = isTerminal ? show(time).slice(11, 23) : show(time)
  const name = show(level)
  const word = name.toUpperCase().padEnd(5)
  const shown = isTerminal ? `${colours[name] ?? ''}${word}\u001b[0m` : word
  const rest = Object.entries(fields).map(([key, value]) => ` ${key}=${quoted(show(value))}`)
  return `${when} ${shown} ${printable(show(msg))}${rest.join('')}\n`
}

function show(value: unknown): string {
  if (typeof value === 'string') return value
  // An error, as pino writes it.
  const { message, stack } = asObject(value) ?? {}
  if (typeof message === 'string') return asString(stack) || message
  return value === undefined ? '' : JSON.stringify(value)
}

function quoted(text: string): string {
  return /^[\w.,:/@%+[\]-]+$/.test(text) ? text : printable(JSON.stringify(text))
}
