import type { IncomingMessage, ServerResponse } from 'node:http'
import { parse as parseYaml } from 'yaml'
import { messageOf } from '../../errors.js'
import { tooDeep } from '../../yaml-levels.js'
import { checkBodyType } from './admission.js'
import type { Json, JsonObject } from './json.js'
import { decodeProtobuf, protobufType } from './protobuf/decode.js'
import { ApiError, badRequest } from './status.js'

/** Larger than any object that a real server accepts. */
const longestBody = 3 * 1024 * 1024

export interface BodyWriter {
  write(text: string): void
  end(): void
  /** Bytes that wait because the client reads slowly. */
  readonly backlog: number
}

export type WriterOf = (response: ServerResponse) => BodyWriter

const plainWriter: WriterOf = (response) => ({
  write: (text) => void response.write(text),
  end: () => void response.end(),
  get backlog() {
    return response.writableLength
  },
})

/** One request to the API with its answer. */
export class ApiCall {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly path: string
  readonly query: URLSearchParams
  readonly #writerOf: WriterOf
  readonly #warnings: string[] = []

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    options: { readonly url: URL; readonly writerOf?: WriterOf | undefined },
  ) {
    this.request = request
    this.response = response
    this.path = options.url.pathname
    this.query = options.url.searchParams
    this.#writerOf = options.writerOf ?? plainWriter
  }

  /** Adds a warning that kubectl prints. */
  readonly warn = (text: string): void => {
    this.#warnings.push(text)
  }

  isTrue(parameter: string): boolean {
    return ['true', '1'].includes(this.query.get(parameter) ?? '')
  }

  get isDryRun(): boolean {
    return this.query.getAll('dryRun').includes('All')
  }

  get contentType(): string {
    const header = this.request.headers['content-type'] ?? 'application/json'
    return header.split(';')[0]?.trim().toLowerCase() ?? ''
  }

  /** Sends the head and gives the place for the body. */
  open(code: number, contentType: string): BodyWriter {
    if (this.#warnings.length > 0) {
      const values = this.#warnings.map((text) => `299 - ${JSON.stringify(headerSafe(text))}`)
      this.response.setHeader('Warning', values)
    }
    this.response.writeHead(code, {
      'Content-Type': contentType,
      'Cache-Control': 'no-cache, private',
    })
    return this.#writerOf(this.response)
  }

  send(code: number, body: JsonObject, contentType = 'application/json'): void {
    this.#sendWhole(code, `${JSON.stringify(body)}\n`, contentType)
  }

  sendText(code: number, text: string): void {
    this.#sendWhole(code, text, 'text/plain; charset=utf-8')
  }

  #sendWhole(code: number, text: string, contentType: string): void {
    const body = this.open(code, contentType)
    body.write(text)
    body.end()
  }

  sendBytes(bytes: Buffer, contentType: string): void {
    this.response.writeHead(200, { 'Content-Type': contentType })
    this.response.end(bytes)
  }

  sendError(error: ApiError): void {
    if (this.response.headersSent) {
      this.response.destroy()
      return
    }
    this.send(error.code, error.status)
  }

  /** The body as JSON, or as YAML where the content type says so. */
  async readBody(): Promise<Json> {
    const type = this.contentType
    checkBodyType(type, protobufType)
    const bytes = await this.#readBytes()
    if (type === protobufType) return decodeProtobuf(bytes)
    const text = bytes.toString('utf8')
    if (text.trim() === '') return {}
    try {
      if (!type.includes('yaml')) return JSON.parse(text) as Json
      const deep = tooDeep(text)
      if (deep !== undefined) throw new Error(deep)
      return parseYaml(text) as Json
    } catch (cause) {
      throw badRequest(`the body cannot be read as ${type}: ${messageOf(cause)}`)
    }
  }

  async #readBytes(): Promise<Buffer> {
    const chunks: Buffer[] = []
    let length = 0
    for await (const chunk of this.request as AsyncIterable<Buffer>) {
      length += chunk.length
      // The rest is read and dropped, up to a limit, because a client reads no answer while it
      // sends.
      if (length <= longestBody) chunks.push(chunk)
      else if (length > 8 * longestBody) this.request.destroy(tooLarge())
    }
    if (length > longestBody) throw tooLarge()
    return Buffer.concat(chunks)
  }
}

function tooLarge(): ApiError {
  const message = `Request entity too large: limit is ${longestBody}`
  return new ApiError(413, 'RequestEntityTooLarge', message)
}

/** Header values hold no line breaks and, for Node, nothing beyond Latin-1. */
function headerSafe(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, '?')
}
