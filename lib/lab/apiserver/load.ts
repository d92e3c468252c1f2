import { setTimeout as delay } from 'node:timers/promises'
import type { NewObject } from './object.js'

/** The number of Services, each with a ClusterIP, and of endpoints behind each of them. */
export interface Load {
  readonly services: number
  readonly endpoints: number
}

/** Takes the objects, such as an API server in this process. */
interface LoadTarget {
  put(object: NewObject): unknown
}

/** Addresses of 10.96.0.0/16. The last ones stay free for Services that benchmarks measure. */
export const mostServices = 60_000
/** Addresses from 10.110.0.0 to 10.179.255.255. Moved endpoints have those from 10.180.0.0 on. */
export const mostEndpoints = 70 * 65_536
/** The most that Kubernetes puts into one slice. */
const sliceSize = 100
const nodes = 100
/** The number of Services that change in turn. */
const rollingServices = 200

/** Reads `5000x10`; undefined for other texts, and for more than there are addresses for. */
export function parseLoad(text: string): Load | undefined {
  const [, services, endpoints] = /^(\d{1,7})x(\d{1,7})$/.exec(text) ?? []
  const load = { services: Number(services), endpoints: Number(endpoints) }
  const fits =
    load.services >= 1 &&
    load.services <= mostServices &&
    load.services * load.endpoints <= mostEndpoints
  return fits ? load : undefined
}

/** Creates all Services and slices. */
export function fill(target: LoadTarget, load: Load): void {
  for (let index = 0; index < load.services; index++) {
    target.put(serviceOf(index))
    for (const slice of slicesOf(load, index, 0)) target.put(slice)
  }
}

/** Work for longer would keep requests waiting. */
const longestTurnMs = 20
/** Changes that are owed for longer are left out. */
const longestOwedSeconds = 2

export interface Rolling {
  /** The slices that change in a second. */
  readonly perSecond: number
  /** Is told, once, that changes are left out, because this machine cannot make so many. */
  readonly late?: () => void
}

/**
 * Changes slices until the signal, as rolling updates do: each change replaces one in ten endpoints
 * of a Service. Half of the time stays for requests. Resolves to the number of changes.
 */
export async function keepChanging(
  target: LoadTarget,
  load: Load,
  { perSecond, late }: Rolling,
  signal: AbortSignal,
): Promise<number> {
  const width = Math.min(load.services, rollingServices)
  const mostOwed = Math.max(1, perSecond * longestOwedSeconds)
  let made = 0
  let isLate = false
  let owed = 0
  let last = performance.now()
  while (!signal.aborted) {
    const began = performance.now()
    owed += ((began - last) * perSecond) / 1000
    last = began
    if (owed > mostOwed) {
      owed = mostOwed
      if (!isLate) late?.()
      isLate = true
    }
    for (; owed >= 1 && performance.now() - began < longestTurnMs; owed--, made++) {
      const generation = 1 + Math.floor(made / width)
      const [slice] = slicesOf(load, made % width, generation)
      if (slice) target.put(slice)
    }
    const pauseMs = Math.max(performance.now() - began, Math.min(5, 500 / perSecond))
    await delay(pauseMs, undefined, { signal }).catch(() => undefined)
  }
  return made
}

function serviceOf(index: number): NewObject {
  const address = `10.96.${index >> 8}.${index & 255}`
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: `service-${index}`, namespace: 'default' },
    spec: {
      type: 'ClusterIP',
      clusterIP: address,
      clusterIPs: [address],
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
    },
  }
}

/** The slices of a Service; only the first one is ever updated. */
function slicesOf({ endpoints }: Load, index: number, generation: number): readonly NewObject[] {
  const name = `service-${index}`
  const slices = Math.max(1, Math.ceil(endpoints / sliceSize))
  return Array.from({ length: slices }, (_, number) => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `${name}-${number + 1}`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': name },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: Array.from(
      { length: Math.min(sliceSize, endpoints - number * sliceSize) },
      (_, at) => endpointOf(index * endpoints + number * sliceSize + at, stepOf(at, generation)),
    ),
  }))
}

/** Each generation moves one in ten endpoints. When all have moved, they move back. */
function stepOf(at: number, generation: number): number {
  return Math.floor((generation + 9 - (at % 10)) / 10) % 2
}

function endpointOf(number: number, moved: number) {
  const second = 110 + 70 * moved + (number >> 16)
  return {
    addresses: [`10.${second}.${(number >> 8) & 255}.${number & 255}`],
    conditions: { ready: true, serving: true, terminating: false },
    nodeName: `node-${number % nodes}`,
  }
}
