import { SourceError } from '../errors.js'
import { asInteger, asObject, asString } from '../state/json.js'
import { identityOf } from '../state/parse-object.js'

/** One line of a watch. */
interface WatchEvent {
  readonly change: 'upsert' | 'remove' | 'none'
  readonly object: unknown
  /** The version of the cluster after this event; undefined when the event does not say. */
  readonly version: string | undefined
  /** The type, if it is not one that Kubernetes is known to send. */
  readonly unknownType?: string
  /** Whether all objects that existed when the watch began have come. */
  readonly isLastOfAll?: boolean
}

/** The server has refused a list or a watch. */
export class Refusal extends SourceError {
  readonly status: number
  readonly retryAfterMs: number

  constructor(message: string, options: { status: number; retryAfterMs?: number }) {
    super(message)
    this.status = options.status
    this.retryAfterMs = options.retryAfterMs ?? 0
  }
}

/**
 * Whether our version is newer than the server's own: the server was restored from a backup, or
 * replaced. It may never reach this version, so a new list is needed.
 */
export const isVersionTooNew = (error: unknown) =>
  error instanceof Refusal &&
  error.status === 504 &&
  /too large resource version/i.test(error.message)

/** The watch cannot go on: the same version would bring the same event again. */
export class ListAgain extends SourceError {
  constructor(path: string, why: string, options: { readonly cause?: unknown } = {}) {
    super(`watch ${path}: ${why}; all objects are listed again`)
    this.cause = options.cause
  }
}

/** A server may send any text, and the log has it again with every attempt. */
const longestMessage = 1000

/** Takes an event of the watch of `path` apart. */
export function parseWatchEvent(line: unknown, path: string): WatchEvent {
  const event = asObject(line)
  const type = asString(event?.['type'])
  if (type === undefined) throw new ListAgain(path, 'an event has no type')
  const object = asObject(event?.['object'])
  if (type === 'ERROR') {
    const status = asInteger(object?.['code'], 100, 599) ?? 500
    const message = asString(object?.['message'])?.slice(0, longestMessage) ?? 'no reason given'
    throw new Refusal(`watch ${path}: ${message}`, { status })
  }
  const metadata = asObject(object?.['metadata'])
  const version = asString(metadata?.['resourceVersion']) || undefined
  if (type === 'BOOKMARK') {
    const mark = asObject(metadata?.['annotations'])?.['k8s.io/initial-events-end']
    const isLastOfAll = mark === 'true'
    // Later marks do not tell that all objects have come, so nothing is to be waited for.
    if (isLastOfAll && version === undefined) {
      throw new ListAgain(path, 'the mark after the last object has no resourceVersion')
    }
    return { change: 'none', object, version, isLastOfAll }
  }
  const change = type === 'DELETED' ? 'remove' : 'upsert'
  if (change === 'upsert' && type !== 'ADDED' && type !== 'MODIFIED') {
    return { change: 'none', object, version, unknownType: type }
  }
  // Without a name it is not known which object has changed, so each may be out of date.
  if (identityOf(object).name === '') throw new ListAgain(path, `${type} names no object`)
  return { change, object, version }
}

const decimal = /^\d{1,40}$/

/** Versions only grow, unless the server was restored from a backup, or replaced. */
export function throwIfOlder(version: string | undefined, known: string, path: string): void {
  // Versions of other forms, which some servers have, cannot be compared.
  if (version === undefined || !decimal.test(version) || !decimal.test(known)) return
  if (BigInt(version) >= BigInt(known)) return
  throw new ListAgain(path, `the server is at version ${version}, behind ${known} that it had`)
}
