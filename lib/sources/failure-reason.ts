import { messageOf } from '../errors.js'

/** OpenSSL puts numbers and a line of its source around a reason. */
const openSslText = /[\dA-F]+:error:[\dA-F]+:SSL routines:\w*:([^:]+):/

/** Node does not say whose certificate it is. The one that signed it may be meant, too. */
const untimely: Readonly<Record<string, string>> = {
  'certificate has expired': 'has expired; renew it',
  'certificate is not yet valid': 'is not valid yet; wait',
}

/** Why a connection failed. */
export function reasonOf(error: Error): string {
  // When a name has several addresses and all refuse, the error has no message of its own.
  if (error instanceof AggregateError && error.message === '') {
    return error.errors.map(messageOf).join(', ')
  }
  const fault = untimely[error.message]
  if (fault !== undefined) {
    return `TLS fails: the certificate of this server, or one that signed it, ${fault}, or set the clock of this node if it is wrong`
  }
  const [, reason] = openSslText.exec(error.message) ?? []
  if (reason === undefined) return error.message
  const hint = reason === 'wrong version number' ? ', so it may speak plain HTTP at this port' : ''
  return `TLS fails: ${reason}${hint}`
}
