import type { Sockets } from '../../../kernel/sockets/sockets.js'
import { keepAlivePatienceMs } from './data-path.js'
import type { EndpointTraffic } from './traffic.js'

/** How the kernel ends a connection whose peer answers no more: by what it last heard of the way. */
const silences: ReadonlySet<string> = new Set(['ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH'])

export function isSilence(error: string | undefined): boolean {
  return error !== undefined && silences.has(error)
}

/** Counts a connection that ended by an error, if the reason is that one side is gone. */
export function countSilence(
  traffic: EndpointTraffic,
  side: 'client' | 'endpoint',
  error: string,
): void {
  if (!isSilence(error)) return
  if (side === 'client') traffic.deadClients++
  else traffic.deadEndpoints++
}

/**
 * Bytes that were sent count as a question, too. Only where a Service asks for it: the kernel then
 * also ends a peer that lives, but takes no byte for so long.
 */
export function limitSilence(sockets: Sockets, fd: number, silenceMs: number): void {
  sockets.userTimeout(fd, silenceMs + keepAlivePatienceMs)
}
