import { equalJson, type JsonObject } from './json.js'
import type { KubeObject, ObjectMeta } from './object.js'
import type { ResourceKind } from './resources.js'
import { conflict, staleObject } from './status.js'

/** Rules for writing objects of every kind. */

const suffixAlphabet = 'bcdfghjklmnpqrstvwxz2456789'

/** A name with this prefix; no name for an empty prefix. */
export function generateName(prefix: string): string {
  if (prefix === '') return ''
  // The remainder of 32 bits by 27 favours no letter by more than one in a hundred million.
  const numbers = new Uint32Array(randomBytes(5 * 4).buffer)
  const letters = Array.from(numbers, (number) => suffixAlphabet[number % suffixAlphabet.length])
  return prefix.slice(0, 58) + letters.join('')
}

const ownedByServer = [
  'uid',
  'creationTimestamp',
  'generation',
  'deletionTimestamp',
  'deletionGracePeriodSeconds',
] as const

/** The fields that a client cannot change. `undefined` removes a value that it sends. */
export function serverFields(previous: ObjectMeta): JsonObject {
  return Object.fromEntries(ownedByServer.map((field) => [field, previous[field]]))
}

export function checkPreconditions(
  kind: ResourceKind,
  current: KubeObject,
  wanted: { readonly uid?: string; readonly resourceVersion?: string },
): void {
  const { uid = '', resourceVersion = '' } = wanted
  const { name } = current.metadata
  if (uid !== '' && uid !== current.metadata.uid) {
    throw conflict(kind, name, `the UID in the precondition (${uid}) does not match the object`)
  }
  if (resourceVersion !== '' && resourceVersion !== current.metadata.resourceVersion) {
    throw conflict(kind, name, staleObject)
  }
}

/** No controller here handles finalizers, so an object with one could never be removed. */
export function withoutFinalizers(
  metadata: ObjectMeta,
  warn: ((text: string) => void) | undefined,
): ObjectMeta {
  const { finalizers, ...rest } = metadata
  if (Array.isArray(finalizers) && finalizers.length > 0) {
    warn?.('metadata.finalizers is ignored: this server runs no finalizers')
  }
  return { ...rest, name: metadata.name }
}

export function withoutUndefined(object: KubeObject): KubeObject {
  const strip = <T extends JsonObject>(value: T): T =>
    Object.values(value).includes(undefined)
      ? (Object.fromEntries(Object.entries(value).filter(([, each]) => each !== undefined)) as T)
      : value
  const metadata = strip(object.metadata)
  return strip(metadata === object.metadata ? object : { ...object, metadata })
}

export function equalButVersion(next: KubeObject, previous: KubeObject): boolean {
  const { resourceVersion } = previous.metadata
  return equalJson({ ...next, metadata: { ...next.metadata, resourceVersion } }, previous)
}

export function contentChanged(next: KubeObject, previous: KubeObject): boolean {
  return !equalJson(
    { ...next, metadata: {}, status: undefined },
    { ...previous, metadata: {}, status: undefined },
  )
}

/**
 * Random numbers of the web platform, because this server runs in a browser, too. There
 * `crypto.randomUUID` exists only on pages of HTTPS, so the UID is put together here.
 */
function randomBytes(count: number): Uint8Array<ArrayBuffer> {
  return globalThis.crypto.getRandomValues(new Uint8Array(count))
}

/** A UUID of version 4 (RFC 9562). */
export function randomUid(): string {
  const bytes = randomBytes(16)
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}
