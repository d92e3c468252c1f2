import { request as httpRequest, type IncomingMessage, type RequestOptions } from 'node:http'
import { request as httpsRequest, type RequestOptions as TlsRequestOptions } from 'node:https'
import type { TcpSocketConnectOpts } from 'node:net'
import { Bell, pause } from '../async.js'
import { codeOf, messageOf, SourceError } from '../errors.js'
import type { Headers } from './impersonation.js'
import { reasonOf } from './failure-reason.js'
import { explainEnd, limitSilence, limitTotal, Silence, type SilenceLimits } from './silence.js'
import { errorText, formOf, readJson } from './answer-body.js'
import { asArray, asObject, asString } from '../state/json.js'
import { parseRetryAfter, passingStatuses } from './backoff.js'

/** The headers and TLS options that a request needs besides its URL. */
export interface Credentials extends TlsRequestOptions {
  readonly headers: Headers
}

/** One API server, and the credentials for it. */
export interface ClusterAccess {
  readonly server: string
  /** Where the trusted certificate authority is, for errors; undefined: nobody named one. */
  readonly authority: string | undefined
  credentials(): Promise<Credentials>
  /** The credentials were refused, or fit no TLS. They are read again for the next request. */
  forget(): void
  /** The server that the kubeconfig names now; undefined while it is the one that is asked. */
  movedTo(): string | undefined
}

export interface ApiRequest extends SilenceLimits {
  readonly method?: 'GET' | 'POST'
  readonly path: string
  readonly query?: Readonly<Record<string, string>>
  /** Sent as JSON. */
  readonly body?: unknown
  /** The request fails if the head of the answer has not come after this time. */
  readonly headTimeoutMs: number
  /** The request fails if the whole body has not come after this time. */
  readonly totalTimeoutMs?: number
}

/**
 * The answer of the server: a body and its name for errors, or why there is none. A lost connection
 * throws instead.
 */
export type ApiAnswer =
  | { readonly ok: true; readonly body: AsyncIterable<Buffer>; readonly what: string }
  | {
      readonly ok: false
      readonly status: number
      readonly message: string
      /** The wait that the header Retry-After asks for, within reason, else 0. */
      readonly retryAfterMs: number
    }

/** One request, for the metrics. */
export interface TriedRequest {
  readonly method: string
  /** Undefined: no answer came. */
  readonly status: number | undefined
  readonly host: string
  /** The time until the head of the answer came, or until the request failed. */
  readonly seconds: number
}

const [unauthorized, conflict] = [401, 409]

/** As in kube-proxy's client, which sends an HTTP/2 ping and gives up after this time. */
export const longestSignOfLifeMs = 15_000

/**
 * How long each address of a name but the last may take to connect. A packet that was lost is sent
 * again after a second. Node gives up after 250 ms, which is less than some ways are long.
 */
export const longestAttemptMs = 2000

/** Other objects wait for one that is sent, so an answer that trickles in is given up as well. */
const briefly = { headTimeoutMs: 10_000, idleTimeoutMs: 10_000, totalTimeoutMs: 10_000 }

/** Codes of a certificate that no trusted authority has signed. */
const untrustedServer =
  /^(UNABLE_TO_(GET_ISSUER|VERIFY_LEAF)|SELF_SIGNED|DEPTH_ZERO|CERT_SIGNATURE_FAILURE|INVALID_CA)/

type ConnectOptions = Pick<TcpSocketConnectOpts, 'autoSelectFamilyAttemptTimeout'>

/** Sends requests to one API server. */
export class ApiClient {
  readonly #access: ClusterAccess
  readonly #userAgent: string
  /** The question for a sign of life that is under way. All silent requests share it. */
  #asking: Promise<number | undefined> | undefined
  #answeredAt = -Infinity
  #tried: (request: TriedRequest) => void = () => undefined

  constructor(access: ClusterAccess, userAgent: string) {
    this.#access = access
    this.#userAgent = userAgent
  }

  /** Calls `listener` for every request from now on that was answered or has failed. */
  onTry(listener: (request: TriedRequest) => void): void {
    this.#tried = listener
  }

  get server(): string {
    return this.#access.server
  }

  movedTo(): string | undefined {
    return this.#access.movedTo()
  }

  async send(request: ApiRequest, signal: AbortSignal): Promise<ApiAnswer> {
    const began = performance.now()
    let response: IncomingMessage | undefined
    try {
      response = await this.#open(request, signal)
    } finally {
      this.#tried({
        method: request.method ?? 'GET',
        status: response?.statusCode,
        host: new URL(this.#access.server).host,
        seconds: (performance.now() - began) / 1000,
      })
    }
    const { statusCode: status = 0 } = response
    if (status >= 200 && status < 300) {
      const asked = `${request.method ?? 'GET'} ${this.server}${request.path}`
      return { ok: true, body: response, what: `${asked}: ${formOf(response)}` }
    }
    // The credentials are no longer valid. The next request reads them again.
    if (status === unauthorized) this.#access.forget()
    // A refusal is short. One whose bytes trickle in would hold the request for hours.
    limitTotal(response, request.path, request.headTimeoutMs)
    return {
      ok: false,
      status,
      message: await errorText(response, status),
      retryAfterMs: parseRetryAfter(response.headers['retry-after'], Date.now()),
    }
  }

  /**
   * Creates an object. Resolves to why the server refuses it for good, or to undefined. Throws if
   * the server may take it later.
   */
  async create(path: string, body: object, signal: AbortSignal): Promise<string | undefined> {
    const answer = await this.send({ method: 'POST', path, body, ...briefly }, signal)
    if (answer.ok) {
      // The body is read to its end, so that the next request can use the connection.
      await readJson(answer.body, answer.what)
      return undefined
    }
    const { status } = answer
    // It was created by an earlier request whose answer was lost.
    if (status === conflict) return undefined
    const refusal = `create ${path}: ${status} ${answer.message}`
    // The next request reads the credentials again.
    if (status === unauthorized || passingStatuses.has(status)) throw new SourceError(refusal)
    return refusal
  }

  /** The uid of the object with this name in a list; undefined when the list has none to tell. */
  async uidOf(path: string, name: string, signal: AbortSignal): Promise<string | undefined> {
    const query = { fieldSelector: `metadata.name=${name}`, limit: '1' }
    const answer = await this.send({ path, query, ...briefly }, signal)
    if (!answer.ok) return undefined
    const [item] = asArray(asObject(await readJson(answer.body, answer.what))?.['items']) ?? []
    return asString(asObject(asObject(item)?.['metadata'])?.['uid'])
  }

  /** The time of the server's last sign of life; undefined when it gives none. */
  async #signOfLife(freshMs: number, signal: AbortSignal): Promise<number | undefined> {
    if (performance.now() - this.#answeredAt < freshMs) return this.#answeredAt
    this.#asking ??= this.#ask(freshMs, signal).finally(() => (this.#asking = undefined))
    return this.#asking
  }

  /**
   * Asks for a sign of life. Any answer is one, also a refusal of the request or of the connection.
   */
  async #ask(freshMs: number, signal: AbortSignal): Promise<number | undefined> {
    const within = Math.min(longestSignOfLifeMs, freshMs / 2)
    const limits = { headTimeoutMs: within, idleTimeoutMs: within }
    try {
      const response = await this.#open({ path: '/version', ...limits }, signal)
      response.on('error', () => undefined).resume()
    } catch (error) {
      if (error instanceof Silence) return undefined
    }
    this.#answeredAt = performance.now()
    return this.#answeredAt
  }

  async #open(request: ApiRequest, signal: AbortSignal): Promise<IncomingMessage> {
    try {
      return await this.#connect(request, signal)
    } catch (error) {
      // The files may have been read in the middle of a rotation.
      if (isTlsError(error)) this.#access.forget()
      if (!untrustedServer.test(causeOf(error))) throw error
      const { authority = 'not given, so Node decides' } = this.#access
      const text = `${messageOf(error)}; the trusted certificate authority is ${authority}`
      throw new SourceError(text, { cause: error })
    }
  }

  /** The program that makes the credentials may hang. Neither requests nor the end wait for it. */
  async #credentials(ms: number, signal: AbortSignal): Promise<Credentials> {
    const got = new Bell()
    const late = pause(ms, signal, got).then(() => undefined)
    try {
      const credentials = await Promise.race([this.#access.credentials(), late])
      if (credentials !== undefined) return credentials
    } finally {
      got.ring()
    }
    const why = signal.aborted ? 'this program ends' : `no answer for ${Math.round(ms)} ms`
    throw new SourceError(`run the exec plugin for ${this.server}: ${why}`)
  }

  async #connect(request: ApiRequest, signal: AbortSignal): Promise<IncomingMessage> {
    const credentials = await this.#credentials(request.headTimeoutMs, signal)
    const url = urlOf(this.#access.server, request)
    const body = request.body === undefined ? undefined : JSON.stringify(request.body)
    const options: RequestOptions & ConnectOptions = {
      autoSelectFamilyAttemptTimeout: longestAttemptMs,
      ...credentials,
      method: request.method ?? 'GET',
      signal,
      headers: {
        ...credentials.headers,
        Accept: 'application/json',
        'User-Agent': this.#userAgent,
        ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
      },
    }
    return new Promise((resolve, reject) => {
      const send = url.protocol === 'https:' ? httpsRequest : httpRequest
      const outgoing = send(url, options)
      const what = `${options.method ?? 'GET'} ${url.origin}${url.pathname}`
      const answered = new Bell()
      const fail = (cause: Error) => {
        answered.ring()
        outgoing.destroy(cause)
        const text = `${what}: ${reasonOf(cause)}`
        reject(cause instanceof Silence ? cause : new SourceError(text, { cause }))
      }
      const ms = request.headTimeoutMs
      const late = new Silence(what, 'no answer', { ms, isServerAlive: false })
      // A request that still waits for a proxy does not tell that it was destroyed.
      void pause(ms, signal, answered).then(async () => {
        // A process that was held up comes to its timers before it reads an answer.
        if (!signal.aborted && !answered.isRung) await new Promise(setImmediate)
        if (signal.aborted) fail(new Error('this program ends'))
        else if (!answered.isRung) fail(late)
      })
      outgoing.on('error', fail)
      outgoing.on('response', (response) => {
        answered.ring()
        // Without keep-alive a dead peer is noticed only when the kernel closes the connection.
        response.socket.setKeepAlive(true, 15_000)
        explainEnd(response, what)
        const { idleTimeoutMs, askAfterMs = idleTimeoutMs } = request
        const ask = () => this.#signOfLife(askAfterMs, signal)
        limitSilence(response, what, { idleTimeoutMs, askAfterMs, ask })
        const { totalTimeoutMs } = request
        if (totalTimeoutMs !== undefined) limitTotal(response, what, totalTimeoutMs)
        resolve(response)
      })
      outgoing.end(body)
    })
  }
}

function urlOf(server: string, request: ApiRequest): URL {
  const url = new URL(server)
  url.pathname = `${url.pathname.replace(/\/$/, '')}${request.path}`
  for (const [key, value] of Object.entries(request.query ?? {})) url.searchParams.set(key, value)
  return url
}

/** Whether this side or the server refused a certificate or key. Some codes have no prefix. */
function isTlsError(error: unknown): boolean {
  return /^(ERR_(OSSL|SSL|TLS)_|EPROTO$)|CERT|ISSUER|CRL|LEAF_SIGNATURE|^INVALID_CA$/.test(
    causeOf(error),
  )
}

/** The code of an error, or of what caused it; empty: none. */
function causeOf(error: unknown): string {
  return codeOf(error instanceof SourceError ? error.cause : error)
}
