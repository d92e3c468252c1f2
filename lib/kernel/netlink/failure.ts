import { getSystemErrorMap } from 'node:util'
import { KernelError, type KernelErrorKind } from '../../errors.js'
import { attributesOf, readI32, readString, readU32 } from './message-reader.js'
import { ackFlags, aligned, headerBytes } from './protocol.js'

/** The kernel's answer to a message it refused. */
export interface NetlinkFailure {
  /** `ENOENT` */
  readonly code: string
  /** The reason in words: the kernel's own (extended ACK) where it gave one. */
  readonly text: string
}

const kinds: Readonly<Record<string, KernelErrorKind>> = {
  ENOENT: 'not-found',
  ESRCH: 'not-found',
  ENODEV: 'not-found',
  ENXIO: 'not-found',
  EADDRNOTAVAIL: 'not-found',
  EEXIST: 'exists',
  EPERM: 'denied',
  EACCES: 'denied',
  EBUSY: 'busy',
  EAGAIN: 'busy',
  EINTR: 'busy',
  ENOBUFS: 'busy',
  EOPNOTSUPP: 'unsupported',
  ENOTSUP: 'unsupported',
  EPROTONOSUPPORT: 'unsupported',
  EAFNOSUPPORT: 'unsupported',
  ENOSYS: 'unsupported',
  EINVAL: 'invalid',
  ERANGE: 'invalid',
  EMSGSIZE: 'invalid',
  ETIMEDOUT: 'timed-out',
}

const extendedText = 1

export function failureOf(errno: number, text = ''): NetlinkFailure {
  const known = getSystemErrorMap().get(-errno)
  return {
    code: known?.[0] ?? `E${errno}`,
    text: text === '' ? (known?.[1] ?? `error ${errno}`) : text,
  }
}

/** Reads the payload of an NLMSG_ERROR; undefined when it is an acknowledgement, not an error. */
export function failureFromAck(payload: Buffer, flags: number): NetlinkFailure | undefined {
  const errno = -readI32(payload, 0)
  if (errno === 0) return undefined
  if ((flags & ackFlags.hasTexts) === 0) return failureOf(errno)
  // The error code is followed by our own header, and by our whole message unless it was capped.
  const echoed = (flags & ackFlags.capped) === 0 ? readU32(payload, 4) : headerBytes
  const text = attributesOf(payload, 4 + aligned(echoed)).get(extendedText)
  return failureOf(errno, text ? readString(text) : '')
}

/** Reads the payload of an NLMSG_DONE, which carries the error a dump ended with. */
export function failureFromDone(payload: Buffer): NetlinkFailure | undefined {
  const errno = payload.length >= 4 ? -readI32(payload, 0) : 0
  return errno > 0 ? failureOf(errno) : undefined
}

export function kernelErrorOf(failure: NetlinkFailure, action: string): KernelError {
  return new KernelError(
    kinds[failure.code] ?? 'failed',
    `${action}: ${failure.text} (${failure.code})`,
    { detail: failure.code },
  )
}
