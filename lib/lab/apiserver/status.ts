import type { JsonObject } from './json.js'

/** One field that was refused, as kubectl prints it. */
export interface Cause extends JsonObject {
  readonly reason: string
  readonly message: string
  readonly field: string
}

/** What the failed request was about. */
interface StatusSubject {
  readonly group: string
  readonly plural: string
  readonly kind: string
}

/** A refusal that reaches the client as a `Status` object. */
export class ApiError extends Error {
  override readonly name = 'ApiError'
  readonly code: number
  readonly reason: string
  readonly details: JsonObject

  constructor(code: number, reason: string, message: string, details: JsonObject = {}) {
    super(message)
    this.code = code
    this.reason = reason
    this.details = details
  }

  get status(): JsonObject {
    const hasDetails = Object.keys(this.details).length > 0
    return {
      kind: 'Status',
      apiVersion: 'v1',
      metadata: {},
      status: 'Failure',
      message: this.message,
      reason: this.reason,
      ...(hasDetails ? { details: this.details } : {}),
      code: this.code,
    }
  }
}

export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  const text = error instanceof Error ? error.message : String(error)
  return new ApiError(500, 'InternalError', `Internal error occurred: ${text}`)
}

const refusal = (code: number, reason: string) => (message: string) =>
  new ApiError(code, reason, message)

export const badRequest = refusal(400, 'BadRequest')
export const forbidden = refusal(403, 'Forbidden')
export const expired = refusal(410, 'Expired')

export const unauthorized = () => new ApiError(401, 'Unauthorized', 'Unauthorized')

export const noSuchPath = () =>
  new ApiError(404, 'NotFound', 'the server could not find the requested resource')

export function methodNotAllowed(method: string): ApiError {
  const message = `the server does not allow this method on the requested resource: ${method}`
  return new ApiError(405, 'MethodNotAllowed', message)
}

export const notFound = (subject: StatusSubject, name: string) =>
  ofObject(404, 'NotFound', subject, name, (object) => `${object} not found`)

export const alreadyExists = (subject: StatusSubject, name: string) =>
  ofObject(409, 'AlreadyExists', subject, name, (object) => `${object} already exists`)

/** Optimistic concurrency: another client wrote in between. */
export const conflict = (subject: StatusSubject, name: string, why: string) =>
  ofObject(
    409,
    'Conflict',
    subject,
    name,
    (object) => `Operation cannot be fulfilled on ${object}: ${why}`,
  )

function ofObject(
  code: number,
  reason: string,
  { group, plural }: StatusSubject,
  name: string,
  message: (object: string) => string,
): ApiError {
  const qualified = group === '' ? plural : `${plural}.${group}`
  const about = group === '' ? { name, kind: plural } : { name, group, kind: plural }
  return new ApiError(code, reason, message(`${qualified} "${name}"`), about)
}

export const staleObject =
  'the object has been modified; please apply your changes to the latest version and try again'

/** The client knows a later history than this server: the server was restored, or replaced. */
export function versionTooLarge(wanted: number, present: number): ApiError {
  const message = 'Too large resource version'
  return new ApiError(504, 'Timeout', `${message}: ${wanted}, current: ${present}`, {
    causes: [{ reason: 'ResourceVersionTooLarge', message }],
    retryAfterSeconds: 1,
  })
}

export function unsupportedMediaType(sent: string, accepted: readonly string[]): ApiError {
  return new ApiError(
    415,
    'UnsupportedMediaType',
    `the body of the request was in an unknown format (${sent}) - accepted media types include: ${accepted.join(', ')}`,
  )
}

export function invalid(subject: StatusSubject, name: string, causes: readonly Cause[]): ApiError {
  const texts = causes.map((cause) => `${cause.field}: ${cause.message}`)
  const list = texts.length === 1 ? texts.join('') : `[${texts.join(', ')}]`
  const kind = subject.group === '' ? subject.kind : `${subject.kind}.${subject.group}`
  return new ApiError(422, 'Invalid', `${kind} "${name}" is invalid: ${list}`, {
    name,
    group: subject.group,
    kind: subject.kind,
    causes,
  })
}

/** Throws if anything is wrong with the object. */
export function refuse(
  subject: StatusSubject,
  { metadata }: { readonly metadata: { readonly name: string } },
  causes: readonly Cause[],
): void {
  if (causes.length > 0) throw invalid(subject, metadata.name, causes)
}

/** The refusals among some checks; a check that found nothing wrong is `false`. */
export function causesOf(...checks: readonly (Cause | false)[]): readonly Cause[] {
  return checks.filter((check) => check !== false)
}

const causeOf = (reason: string, field: string, message: string): Cause => ({
  reason: `FieldValue${reason}`,
  message,
  field,
})

export const required = (field: string, why = '') =>
  causeOf('Required', field, joined('Required value', why))

export function invalidValue(field: string, value: unknown, why: string): Cause {
  const shown = JSON.stringify(value) as string | undefined
  return causeOf('Invalid', field, joined(`Invalid value: ${shown ?? 'null'}`, why))
}

export const duplicate = (field: string, value: unknown) =>
  causeOf('Duplicate', field, `Duplicate value: ${JSON.stringify(value)}`)

export function notSupported(field: string, value: unknown, valid: readonly string[]): Cause {
  const choices = valid.map((choice) => JSON.stringify(choice)).join(', ')
  const shown = JSON.stringify(value)
  return causeOf('NotSupported', field, `Unsupported value: ${shown}: supported values: ${choices}`)
}

export const forbiddenField = (field: string, why: string) =>
  causeOf('Forbidden', field, `Forbidden: ${why}`)

const joined = (head: string, why: string) => (why === '' ? head : `${head}: ${why}`)
