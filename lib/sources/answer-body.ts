import type { IncomingMessage } from 'node:http'
import { SourceError } from '../errors.js'
import { asObject, asString, parseJson } from '../state/json.js'

/** Reads bodies of answers. Each has a limit, because a server may send without an end. */

const longestErrorText = 4096

/** A page has 250 objects and a few MB; a server that ignores pages sends all objects at once. */
const longestAnswer = 256 * 1024 * 1024

/** A server or a proxy tells in plain text what is wrong with the request, in a line or two. */
const longestPlainText = 200

/** The message of the Status object, or else the HTTP status, with what is said in plain text. */
export async function errorText(response: IncomingMessage, status: number): Promise<string> {
  const body = await beginningOf(response, longestErrorText).catch(() => '')
  const message = asString(asObject(parseJson(body))?.['message'])
  if (message) return message
  const { location, 'content-type': type = '' } = response.headers
  const to = location === undefined ? '' : ` to ${location}, which is not followed`
  const plain = type.startsWith('text/plain') ? body.trim().slice(0, longestPlainText) : ''
  const said = plain === '' ? '' : `: ${plain}`
  return `${response.statusMessage || `status ${status}`}${to}${said}`
}

/** The text of a body, up to a little more than so many characters. The rest is never read. */
export async function beginningOf(body: IncomingMessage, characters: number): Promise<string> {
  let text = ''
  for await (const piece of body.setEncoding('utf8')) {
    text += String(piece)
    if (text.length > characters) break
  }
  return text
}

/** `the answer (text/html, gzip)`, as its headers call it. */
export function formOf({ headers }: IncomingMessage): string {
  const named = [headers['content-type'], headers['content-encoding']].filter(Boolean)
  return `the answer${named.length === 0 ? '' : ` (${named.join(', ')})`}`
}

/** A body that is no JSON: another program has answered, or a proxy on the way. */
export class NotJson extends SourceError {}

/**
 * Reads the whole body as JSON. A body without an end would take all memory. `what` says in errors
 * which answer it is.
 */
export async function readJson(body: AsyncIterable<Buffer>, what: string): Promise<unknown> {
  const chunks: Buffer[] = []
  let length = 0
  for await (const chunk of body) {
    length += chunk.length
    if (length > longestAnswer) {
      throw new SourceError(`${what} is longer than ${longestAnswer} bytes`)
    }
    chunks.push(chunk)
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8')) as unknown
  } catch (cause) {
    const advice = 'look at what answers at this address, and at proxies on the way'
    throw new NotJson(`${what} of ${length} bytes is not JSON; ${advice}`, { cause })
  }
}
