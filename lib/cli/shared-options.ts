import { Option, type Command } from 'commander'
import { Document, visit } from 'yaml'
import { ConfigError } from '../errors.js'
import { parseDuration } from '../config/duration.js'
import { printableJson } from '../state/names.js'

/** Options that several commands have, so that they have one name and one meaning everywhere. */

/** Each flag is called as the flag of the proxy; the short name is a synonym. */
export const modeOption = (description: string) =>
  new Option('--mode, --proxy-mode <mode>', description)

export const nodeNameOption = (description: string) =>
  new Option('--node, --hostname-override <name>', description)

export function wholeNumber(flag: string, text: string, least: number, most: number): number {
  const value = /^\d+$/.test(text) ? Number(text) : Number.NaN
  if (value >= least && value <= most) return value
  throw new ConfigError(`${flag}: ${JSON.stringify(text)} is not a number from ${least} to ${most}`)
}

/** A time that somebody waits, in milliseconds. A number without a unit means seconds. */
export function waitMs(flag: string, text: string): number {
  const ms = parseDuration(text) ?? (text === '' ? Number.NaN : Number(text) * 1000)
  if (ms >= leastWaitMs && ms <= longestWaitMs) return ms
  throw new ConfigError(
    `${flag}: ${JSON.stringify(text)} is not a time from 100ms to 24h, such as 500ms or 2s`,
  )
}

const leastWaitMs = 100
const longestWaitMs = 24 * 3_600_000

/** The flags that have a value. */
export function given(flags: Readonly<Record<string, string | undefined>>): [string, string][] {
  return Object.entries(flags).filter((entry): entry is [string, string] => entry[1] !== undefined)
}

const formats = ['json', 'yaml', 'wide'] as const
type OutputFormat = (typeof formats)[number]

export interface OutputFlags {
  /** Undefined: text for people. `wide` is the same text, uncut and unrounded. */
  readonly output?: OutputFormat
}

export function addOutputOptions(command: Command, more = ''): Command {
  const format = new Option(
    '-o, --output <format>',
    `data for programs (json, yaml), or text in which nothing is cut (wide)${more}`,
  )
  const json = new Option('--json', 'the same as -o json')
  return command
    .addOption(format.choices(formats))
    .addOption(json.implies({ output: 'json' satisfies OutputFormat }))
}

/** Whether the output is for programs. */
export const isData = ({ output }: OutputFlags) => output === 'json' || output === 'yaml'

interface Printed {
  readonly data: unknown
  readonly text: string
}

/** The output of a command that prints once, in the wanted format. */
export function printed({ output }: OutputFlags, { data, text }: Printed): string {
  if (output === 'json') return `${printableJson(JSON.stringify(data, undefined, 2))}\n`
  return output === 'yaml' ? yamlOf(data) : text
}

/** One of many documents that a command prints: a line of JSON, a document of YAML, or text. */
export function printedOfMany({ output }: OutputFlags, { data, text }: Printed): string {
  if (output === 'json') return `${printableJson(JSON.stringify(data))}\n`
  return output === 'yaml' ? `---\n${yamlOf(data)}` : text
}

/** Exactly the data of the JSON: without undefined values, and without anchors for equal values. */
function yamlOf(data: unknown): string {
  const plain: unknown = JSON.parse(JSON.stringify(data))
  const document = new Document(plain, { aliasDuplicateObjects: false })
  // Only a text in double quotes can have escapes.
  visit(document, {
    Scalar: (_key, scalar) => {
      const { value } = scalar
      if (typeof value === 'string' && printableJson(value) !== value) scalar.type = 'QUOTE_DOUBLE'
    },
  })
  return printableJson(document.toString({ lineWidth: 0 }))
}
