import {
  durationAnnotation,
  durationOf,
  numberAnnotation,
  wordAnnotation,
  type Annotation,
} from './annotations.js'

/** What a Service may ask for its connections: limits, their end, and what endpoints see of clients. */

/** What becomes of the connections to an endpoint that left. */
interface RemovalPolicy {
  /** Connections are reset so long after their endpoint left; undefined: never. */
  readonly resetAfterMs: number | undefined
}

const resetPrefix = 'reset-after='

export const removalAnnotation: Annotation<RemovalPolicy> = {
  name: 'on-endpoint-removal',
  valid: `keep, or ${resetPrefix} and 1s to 3600s, such as ${resetPrefix}30s`,
  parse: (text) => {
    if (text === 'keep') return { resetAfterMs: undefined }
    if (!text.startsWith(resetPrefix)) return undefined
    const resetAfterMs = durationOf(text.slice(resetPrefix.length), 1_000, 3_600_000)
    return resetAfterMs === undefined ? undefined : { resetAfterMs }
  },
}

/** After so much silence, a peer is asked whether it still exists; 0: never. */
export const keepAliveAnnotation: Annotation<number> = {
  name: 'keep-alive',
  valid: 'off, or 1s to 3600s, such as 30s',
  parse: (text) => (text === 'off' ? 0 : durationOf(text, 1_000, 3_600_000)),
}

/** How long an endpoint may take from the first byte of a client to its own first byte. */
export const firstByteAnnotation = durationAnnotation('first-byte-timeout', 100, 600_000)

/** How many connections one endpoint of a service port may have from this node. */
export const maxConnectionsAnnotation = numberAnnotation('max-connections', 1, 1_000_000)

/** A header tells the endpoint who the client is. */
export const proxyProtocolAnnotation = wordAnnotation('proxy-protocol', ['v1', 'v2'])

/**
 * Whether endpoints see the client's own address in the cases in which the kernel modes keep it.
 */
export const sourceAddressAnnotation = wordAnnotation('source-address', ['auto', 'keep', 'hide'])
