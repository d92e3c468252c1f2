import { request as httpRequest, type IncomingMessage } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { messageOf } from '../../errors.js'
import { asObject, asString, parseJson } from '../../state/json.js'
import { beginningOf } from '../../sources/answer-body.js'
import { Backoff, parseRetryAfter, passingStatuses } from '../../sources/backoff.js'
import type { Log, Meter } from '../../modes/mode.js'

/** The result of sending a batch. A `failed` one is worth another try after `waitMs`. */
type Outcome =
  | { readonly kind: 'sent'; readonly rejected: number }
  | { readonly kind: 'refused' }
  | { readonly kind: 'failed'; readonly waitMs: number }

interface DeliveryOptions {
  /** The setting `flows.otlp.endpoint`. */
  readonly endpoint: string
  readonly signal: 'logs' | 'metrics'
  readonly meter: Pick<Meter, 'count'>
  readonly log: Log
  readonly random: () => number
  readonly timeoutMs: number
}

const longestWaitMs = 60_000
/** The answer of a collector has a few bytes. */
const longestAnswer = 16_384

/** Sends batches to one path of a collector, and logs once when they do not arrive. */
export class Delivery {
  readonly #options: DeliveryOptions
  readonly #url: URL
  readonly #backoff: Backoff
  #isFailing = false
  #isPartial = false

  constructor(options: DeliveryOptions) {
    this.#options = options
    this.#url = new URL(`${options.endpoint.replace(/\/+$/, '')}/v1/${options.signal}`)
    this.#backoff = new Backoff(1_000, options.random)
  }

  /** Never rejects. */
  async send(batch: object, stop: AbortSignal): Promise<Outcome> {
    const outcome = await this.#try(JSON.stringify(batch), stop)
    const { meter, signal } = this.#options
    meter.count('flow_export_batches_total', { signal, outcome: outcome.kind })
    return outcome
  }

  async #try(body: string, stop: AbortSignal): Promise<Outcome> {
    const { timeoutMs } = this.#options
    const attempt = new AbortController()
    const end = () => attempt.abort(stop.reason)
    const late = setTimeout(
      () => attempt.abort(new Error(`no answer in ${timeoutMs} ms`)),
      timeoutMs,
    )
    stop.addEventListener('abort', end, { once: true })
    try {
      const answer = await post(this.#url, body, attempt.signal)
      const { status } = answer
      if (status >= 200 && status < 300) {
        this.#works()
        const rejected = rejectedIn(answer.text)
        if (rejected.count > 0) this.#isPartlyTaken(rejected)
        return { kind: 'sent', rejected: rejected.count }
      }
      // OTLP/HTTP wants another try after these.
      if (!passingStatuses.has(status)) {
        this.#fails(`it answers ${status}, so the batch is not sent again and is lost`)
        return { kind: 'refused' }
      }
      this.#fails(`it answers ${status}`)
      return this.#later(answer.retryAfterMs)
    } catch (error) {
      const { signal } = attempt
      if (!stop.aborted) this.#fails(messageOf(signal.aborted ? signal.reason : error))
      return this.#later(0)
    } finally {
      clearTimeout(late)
      stop.removeEventListener('abort', end)
    }
  }

  #later(askedMs: number): Outcome {
    return { kind: 'failed', waitMs: Math.max(askedMs, this.#backoff.next(longestWaitMs)) }
  }

  #works(): void {
    this.#backoff.reset()
    if (!this.#isFailing) return
    this.#isFailing = false
    this.#options.log.info({ url: this.#url.href }, 'the OpenTelemetry collector takes flows again')
  }

  /** Some batches have what it refuses and others not, so it is told once only. */
  #isPartlyTaken({ count, reason }: Rejected): void {
    if (this.#isPartial) return
    this.#isPartial = true
    const fields = { url: this.#url.href, refused: count, reason }
    this.#options.log.warn(fields, 'the OpenTelemetry collector takes only a part of the flows')
  }

  #fails(error: string): void {
    const { log } = this.#options
    if (!this.#isFailing) {
      const advice = 'the OpenTelemetry collector does not take flows; see flows.otlp.endpoint'
      log.warn({ url: this.#url.href, error }, advice)
    }
    this.#isFailing = true
  }
}

/** Resolves to the answer, of whose body the beginning is read. */
async function post(url: URL, body: string, signal: AbortSignal) {
  const send = url.protocol === 'https:' ? httpsRequest : httpRequest
  const headers = {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
  }
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    send(url, { method: 'POST', signal, headers })
      .on('error', reject)
      .on('response', resolve)
      .end(body)
  })
  const text = await beginningOf(response, longestAnswer)
  const retryAfterMs = parseRetryAfter(response.headers['retry-after'], Date.now())
  return { status: response.statusCode ?? 0, retryAfterMs, text }
}

type Rejected = ReturnType<typeof rejectedIn>

/** The number of refused lines or numbers: a collector may take only a part of a batch. */
export function rejectedIn(text: string) {
  const partial = asObject(asObject(parseJson(text))?.partialSuccess)
  const count = Number(partial?.rejectedLogRecords ?? partial?.rejectedDataPoints)
  return {
    count: Number.isSafeInteger(count) && count > 0 ? count : 0,
    reason: asString(partial?.errorMessage) ?? '',
  }
}
