/** Services with ten endpoints each, as they come from an API server. */

export const endpointsPerService = 10

export function accept<T>(parsed: { outcome: string; value?: T }, use: (value: T) => void): void {
  if (parsed.outcome !== 'accepted' || parsed.value === undefined) throw new Error('not accepted')
  use(parsed.value)
}

export function rawService(index: number): unknown {
  return {
    metadata: { name: `service-${index}`, namespace: 'default' },
    spec: {
      type: 'ClusterIP',
      clusterIP: `172.16.${index >> 8}.${index & 255}`,
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
    },
  }
}

/** In the first generation, or with another endpoint in front of the nine that stay. */
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
      // What replaces the first endpoint stands anywhere among the others, whatever the size of the
      // cluster: endpoints have an order, and whose place in it changes is written, too.
      const place = endpoint === 0 ? (generation * 53) % 128 : endpoint * 12
      const number = (place << 17) + serial
      return {
        addresses: [`10.${(number >> 16) & 255}.${(number >> 8) & 255}.${number & 255}`],
        conditions: { ready: true, serving: true, terminating: false },
        nodeName: `node-${serial < 1000 ? 1 : 2}`,
      }
    }),
  }
}
