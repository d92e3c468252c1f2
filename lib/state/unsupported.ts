import { optionPrefix, readAnnotation, type Annotation, type Options } from './annotations.js'
import {
  firstByteAnnotation,
  keepAliveAnnotation,
  maxConnectionsAnnotation,
  proxyProtocolAnnotation,
  removalAnnotation,
  sourceAddressAnnotation,
} from './connection-annotations.js'

/** The annotations that only userspace mode can do, because it carries the connections itself. */
export const proxyAnnotations: readonly Annotation<unknown>[] = [
  maxConnectionsAnnotation,
  proxyProtocolAnnotation,
  keepAliveAnnotation,
  firstByteAnnotation,
  sourceAddressAnnotation,
]

/** What the mode of a node cannot do. */
export interface Unsupported {
  /** The name of the mode, for people. */
  readonly mode: string
  readonly annotations: readonly Annotation<unknown>[]
}

/** Values that ask for what rules do anyway: they keep the client's address where they can. */
const asUsual: ReadonlySet<string> = new Set(['off', 'keep', 'auto'])

/** A sentence for each valid annotation of a Service that the mode cannot do. */
export function unsupportedTexts(
  options: Options,
  unsupported: Unsupported | undefined,
): readonly string[] {
  if (!unsupported) return []
  return unsupported.annotations.flatMap((annotation) => {
    const value = options[annotation.name]
    if (value === undefined || asUsual.has(value)) return []
    if (readAnnotation(options, annotation) === undefined) return []
    const others =
      annotation.name === removalAnnotation.name ? 'the other modes do' : 'only userspace mode does'
    return [
      `annotation ${optionPrefix}${annotation.name}: ${value} has no effect, because ${unsupported.mode} mode cannot do it; ${others}`,
    ]
  })
}
