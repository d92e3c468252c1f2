import { balanceAnnotation, weightAnnotation } from './balance.js'
import { checkAnnotations } from './endpoint-check.js'
import { proxyAnnotations } from './unsupported.js'
import { removalAnnotation } from './connection-annotations.js'
import type { Annotation } from './annotations.js'

/** The annotations of a Service whose values are checked for every mode. */
export const checkedAnnotations: readonly Annotation<unknown>[] = [
  balanceAnnotation,
  weightAnnotation,
  ...checkAnnotations,
  ...proxyAnnotations,
  removalAnnotation,
]

/** The annotations of a Service that one mode reads by itself. */
export const modeAnnotations = { ipvsScheduler: 'ipvs-scheduler', ebpfSockets: 'sockets' } as const

/** The names of all annotations of a Service, without the prefix. */
export const annotationNames: readonly string[] = [
  ...checkedAnnotations.map(({ name }) => name),
  ...Object.values(modeAnnotations),
]
