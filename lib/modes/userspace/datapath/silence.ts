import type { Sockets } from '../../../kernel/sockets/sockets.js'
import { keepAlivePatienceMs } from './data-path.js'
import type { EndpointTraffic } from './traffic.js'

/** Errors of a connection whose peer answers no more. The kernel gives the last one it heard of. */
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
 * Ends the connection also when the peer does not confirm sent bytes for so long. Use it only where
 * a Service asks for it: it also ends a peer that lives but takes no byte for so long.
 */
export function limitSilence(sockets: Sockets, fd: number, silenceMs: number): void {
  sockets.userTimeout(fd, silenceMs + keepAlivePatienceMs)
}
