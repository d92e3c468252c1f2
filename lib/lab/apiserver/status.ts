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

export function badRequest(message: string): ApiError {
  return new ApiError(400, 'BadRequest', message)
}

export function unauthorized(): ApiError {
  return new ApiError(401, 'Unauthorized', 'Unauthorized')
}

export function noSuchPath(): ApiError {
  return new ApiError(404, 'NotFound', 'the server could not find the requested resource')
}

export function notFound(subject: StatusSubject, name: string): ApiError {
  return new ApiError(
    404,
    'NotFound',
    `${qualified(subject)} "${name}" not found`,
    about(subject, name),
  )
}

export function methodNotAllowed(method: string): ApiError {
  return new ApiError(
    405,
    'MethodNotAllowed',
    `the server does not allow this method on the requested resource: ${method}`,
  )
}

export function alreadyExists(subject: StatusSubject, name: string): ApiError {
  return new ApiError(
    409,
    'AlreadyExists',
    `${qualified(subject)} "${name}" already exists`,
    about(subject, name),
  )
}

/** Optimistic concurrency: another client wrote in between. */
export function conflict(subject: StatusSubject, name: string, why: string): ApiError {
  return new ApiError(
    409,
    'Conflict',
    `Operation cannot be fulfilled on ${qualified(subject)} "${name}": ${why}`,
    about(subject, name),
  )
}

export const staleObject =
  'the object has been modified; please apply your changes to the latest version and try again'

export function expired(message: string): ApiError {
  return new ApiError(410, 'Expired', message)
}

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

export function required(field: string, why = ''): Cause {
  return { reason: 'FieldValueRequired', message: joined('Required value', why), field }
}

export function invalidValue(field: string, value: unknown, why: string): Cause {
  const shown = JSON.stringify(value) as string | undefined
  return {
    reason: 'FieldValueInvalid',
    message: joined(`Invalid value: ${shown ?? 'null'}`, why),
    field,
  }
}

export function duplicate(field: string, value: unknown): Cause {
  return {
    reason: 'FieldValueDuplicate',
    message: `Duplicate value: ${JSON.stringify(value)}`,
    field,
  }
}

export function notSupported(field: string, value: unknown, valid: readonly string[]): Cause {
  const choices = valid.map((choice) => JSON.stringify(choice)).join(', ')
  return {
    reason: 'FieldValueNotSupported',
    message: `Unsupported value: ${JSON.stringify(value)}: supported values: ${choices}`,
    field,
  }
}

export function forbiddenField(field: string, why: string): Cause {
  return { reason: 'FieldValueForbidden', message: `Forbidden: ${why}`, field }
}

function joined(head: string, why: string): string {
  return why === '' ? head : `${head}: ${why}`
}

function qualified(subject: StatusSubject): string {
  return subject.group === '' ? subject.plural : `${subject.plural}.${subject.group}`
}

function about({ group, plural }: StatusSubject, name: string): JsonObject {
  return group === '' ? { name, kind: plural } : { name, group, kind: plural }
}
