/** Services with ten endpoints each, as they come from an API server. */
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker } from '../../lib/state/tracker.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import type { IpFamily } from '../../lib/state/ip.js'

export const endpointsPerService = 10

/** A tracker that has read so many Services. */
export class RawCluster {
  readonly tracker: Tracker

  constructor(families: readonly IpFamily[] = ['IPv4']) {
    this.tracker = new Tracker({
      ...{ families, nodeName: 'node-1', bindAddress: '0.0.0.0', nodePortAddresses: [] },
      detectLocal: { mode: 'ClusterCIDR', cidrs: ['10.0.0.0/8'] },
      allowsExternalIps: true,
    })
  }

  async read(services: number): Promise<void> {
    for (let index = 0; index < services; index++) {
      accept(parseService(rawService(index)), (value) => this.tracker.upsertService(value))
      this.readSlice(rawSlice(index, 0))
      // Pauses let the garbage collector run, as between the pages of a real list.
      if (index % 500 === 499) await new Promise((resolve) => setImmediate(resolve))
    }
  }

  readSlice(raw: unknown): void {
    accept(parseEndpointSlice(raw), (value) => this.tracker.upsertEndpointSlice(value))
  }

  /** The state of the first family. */
  take(): DesiredState {
    const [state] = this.tracker.take().states
    if (!state) throw new Error('no state')
    return state
  }
}

function accept<T>(parsed: { outcome: string; value?: T }, use: (value: T) => void): void {
  if (parsed.outcome !== 'accepted' || parsed.value === undefined) throw new Error('not accepted')
  use(parsed.value)
}

function rawService(index: number): unknown {
  return {
    metadata: { name: `service-${index}`, namespace: 'default' },
    spec: {
      type: 'ClusterIP',
      clusterIP: `172.16.${index >> 8}.${index & 255}`,
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
    },
  }
}

/**
 * The endpoints of a Service. After generation 0 another one replaces the first; the others stay.
 */
export function rawSlice(index: number, generation: number, count = endpointsPerService): unknown {
  return {
    metadata: {
      name: `service-${index}-abcde`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': `service-${index}` },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: Array.from({ length: count }, (_, endpoint) => {
      const serial = index * endpointsPerService + endpoint
      // Endpoints have an order, and an endpoint is written again when its place changes. So the
      // new endpoint gets a place anywhere among the others, in a cluster of any size.
      const replaced = generation === 0 ? 0 : 1 + ((generation * 53) % 127)
      const place = endpoint === 0 ? replaced : endpoint * 12
      const number = (place << 17) + serial
      return {
        addresses: [`10.${(number >> 16) & 255}.${(number >> 8) & 255}.${number & 255}`],
        conditions: { ready: true, serving: true, terminating: false },
        nodeName: `node-${serial < 1000 ? 1 : 2}`,
      }
    }),
  }
}
