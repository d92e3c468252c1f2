import { removalAnnotation } from '../state/connection-annotations.js'
import { proxyAnnotations, type Undone } from '../state/undone.js'
import { isProxyMode, type ProxyMode } from './config.js'

/** What the mode of a node cannot do of what a Service may ask for; undefined when it does it all. */
export function undoneBy(mode: ProxyMode): Undone | undefined {
  if (mode === '' || mode === 'auto' || isProxyMode(mode)) return undefined
  // IPVS has a table of connections of its own.
  const more = mode === 'ipvs' ? [removalAnnotation] : []
  return { mode, annotations: [...proxyAnnotations, ...more] }
}
