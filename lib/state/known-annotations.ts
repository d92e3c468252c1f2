import { balanceAnnotation, weightAnnotation } from './balance.js'
import { checkAnnotations } from './endpoint-check.js'
import {
  firstByteAnnotation,
  keepAliveAnnotation,
  maxConnectionsAnnotation,
  proxyProtocolAnnotation,
  removalAnnotation,
  sourceAddressAnnotation,
} from './connection-annotations.js'
import type { Annotation } from './annotations.js'

/** The annotations of a Service whose values are checked for every mode. */
export const checkedAnnotations: readonly Annotation<unknown>[] = [
  balanceAnnotation,
  weightAnnotation,
  proxyProtocolAnnotation,
  sourceAddressAnnotation,
  ...checkAnnotations,
  removalAnnotation,
  maxConnectionsAnnotation,
  keepAliveAnnotation,
  firstByteAnnotation,
]

/** The annotations of a Service that one mode reads by itself. */
export const modeAnnotations = { ipvsScheduler: 'ipvs-scheduler', ebpfSockets: 'sockets' } as const

/** The names of all annotations of a Service, without the prefix. */
export const annotationNames: readonly string[] = [
  ...checkedAnnotations.map(({ name }) => name),
  ...Object.values(modeAnnotations),
]
