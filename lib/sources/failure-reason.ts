import { messageOf } from '../errors.js'

/** OpenSSL puts numbers and a line of its source around a reason. */
const openSslText = /[\dA-F]+:error:[\dA-F]+:SSL routines:\w*:([^:]+):/

/** Why a connection failed. */
export function reasonOf(error: Error): string {
  // When a name has several addresses and all refuse, the error has no message of its own.
  if (error instanceof AggregateError && error.message === '') {
    return error.errors.map(messageOf).join(', ')
  }
  const [, reason] = openSslText.exec(error.message) ?? []
  if (reason === undefined) return error.message
  const hint = reason === 'wrong version number' ? ', so it may speak plain HTTP at this port' : ''
  return `TLS fails: ${reason}${hint}`
}
