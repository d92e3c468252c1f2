import { balanceAnnotation, weightAnnotation } from './balance.js'
import { checkAnnotations } from './endpoint-check.js'
import { proxyAnnotations } from './unsupported.js'
import { removalAnnotation } from './connection-annotations.js'
import { wordAnnotation, type Annotation } from './annotations.js'

/** The kernel's schedulers; each is a module `ip_vs_NAME` (IP04). */
export const schedulers = [
  'rr',
  'wrr',
  'lc',
  'wlc',
  'fo',
  'ovf',
  'lblc',
  'lblcr',
  'dh',
  'sh',
  'mh',
  'sed',
  'nq',
  'twos',
] as const

/** The scheduler of a Service in ipvs mode. */
export const schedulerAnnotation = wordAnnotation('ipvs-scheduler', schedulers)

/** A Service whose connections ebpf mode leaves to packets. */
export const socketsAnnotation = wordAnnotation('sockets', ['off'])

/** The annotations of a Service whose values are checked for every mode. */
export const checkedAnnotations: readonly Annotation<unknown>[] = [
  balanceAnnotation,
  weightAnnotation,
  ...checkAnnotations,
  ...proxyAnnotations,
  removalAnnotation,
  schedulerAnnotation,
  socketsAnnotation,
]

/** The names of all annotations of a Service, without the prefix. */
export const annotationNames: readonly string[] = checkedAnnotations.map(({ name }) => name)
