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

/** An annotation that cannot take effect on a node. */
export interface Unsupported {
  readonly annotation: Annotation<unknown>
  /** The valid values that need nothing of the node. */
  readonly asUsual: ReadonlySet<string>
  /** Why, and perhaps what else can; the end of a sentence. */
  readonly why: string
}

/** Values that ask for what rules do anyway: they keep the client's address where they can. */
const asRules: ReadonlySet<string> = new Set(['off', 'keep', 'auto'])

/** What a kernel mode cannot do. */
export function unsupportedInMode(
  mode: string,
  annotations: readonly Annotation<unknown>[],
): readonly Unsupported[] {
  return annotations.map((annotation) => {
    const others =
      annotation === removalAnnotation ? 'the other modes do' : 'only userspace mode does'
    return { annotation, asUsual: asRules, why: `${mode} mode cannot do it; ${others}` }
  })
}

/** Listeners at the addresses of Services, in place of rules, hide every client. */
export function unsupportedWithoutRules(why: string): readonly Unsupported[] {
  return [{ annotation: sourceAddressAnnotation, asUsual: new Set(['auto', 'hide']), why }]
}

/** A sentence for each valid annotation of a Service that cannot take effect. */
export function unsupportedTexts(
  options: Options,
  unsupported: readonly Unsupported[],
): readonly string[] {
  return unsupported.flatMap(({ annotation, asUsual, why }) => {
    const value = options[annotation.name]
    if (value === undefined || asUsual.has(value)) return []
    if (readAnnotation(options, annotation) === undefined) return []
    return [`annotation ${optionPrefix}${annotation.name}: ${value} has no effect, because ${why}`]
  })
}
