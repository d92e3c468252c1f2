import { asObject, asString, show, type Json } from './json.js'
import type { Identity } from './objects.js'
import type { Protocol } from './names.js'

/** The parsers of state/ throw this error, and their exported functions catch it. */
export class MalformedObject extends Error {
  override readonly name = 'MalformedObject'
}

interface ObjectHead {
  readonly identity: Identity
  readonly metadata: Json
  readonly body: Json
}

// The API allows only names of at most 253 of these characters.
export const dnsName = /^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/

/** Name and namespace of any object. A namespaced object without a namespace is in `default`. */
export function readHead(raw: unknown, isNamespaced: boolean): ObjectHead {
  const body = asObject(raw)
  const metadata = asObject(body?.metadata)
  if (!body || !metadata) throw new MalformedObject('metadata is missing')
  const name = asString(metadata.name)
  if (name === undefined || !dnsName.test(name)) {
    throw new MalformedObject(`metadata.name ${show(metadata.name)} is not a DNS name`)
  }
  const namespace = isNamespaced ? (metadata.namespace ?? 'default') : ''
  if (typeof namespace !== 'string' || (isNamespaced && !dnsName.test(namespace))) {
    throw new MalformedObject(`metadata.namespace ${show(namespace)} is not a DNS name`)
  }
  return { identity: { namespace, name }, metadata, body }
}

/** The identity of any object, even a malformed one, for messages and for removals. */
export function identityOf(raw: unknown): Identity {
  const metadata = asObject(asObject(raw)?.metadata)
  return {
    namespace: (asString(metadata?.namespace) ?? '').slice(0, 253),
    name: (asString(metadata?.name) ?? '').slice(0, 253),
  }
}

export function readProtocol(value: unknown, where: string): Protocol {
  if (value === undefined || value === null || value === '') return 'TCP'
  if (value === 'TCP' || value === 'UDP' || value === 'SCTP') return value
  throw new MalformedObject(`${where} ${show(value)} is not TCP, UDP or SCTP`)
}

const portNamePattern = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

export function readPortName(value: unknown, where: string): string {
  if (value === undefined || value === null || value === '') return ''
  if (typeof value === 'string' && portNamePattern.test(value)) return value
  throw new MalformedObject(`${where} ${show(value)} is not a port name`)
}
