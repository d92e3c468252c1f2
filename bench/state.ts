import { Tracker } from '../lib/state/tracker.js'
import type { BenchResults } from './support/results.js'
import { parseService } from '../lib/state/parse-service.js'
import { parseEndpointSlice } from '../lib/state/parse-endpoint-slice.js'

const endpointsPerService = 10
const changes = 300

/** 10,000 Services x 10 endpoints: first build, one change, growth against 1,000, memory. */
export async function run(): Promise<BenchResults> {
  const small = await measure(1_000)
  const large = await measure(10_000)
  const rows = [small, large].map((row) => ({
    services: row.services,
    'first build ms': row.firstBuildMs.toFixed(0),
    'one change ms (median)': row.changeMs.toFixed(4),
    'process MiB': row.memoryMib.toFixed(0),
  }))
  console.table(rows)
  console.log(
    `growth of one change, 10,000 against 1,000: ${(large.changeMs / small.changeMs).toFixed(2)}x (target <= 1.5x)`,
  )
  console.log('targets at 10,000: first build <= 1500 ms, change <= 1 ms, memory <= 180 MiB')
  const at = '10,000 Services x 10'
  return [
    { name: `${at}: first build`, value: large.firstBuildMs, unit: 'ms', target: '<= 1500' },
    { name: `${at}: one change, median`, value: large.changeMs, unit: 'ms', target: '<= 1' },
    { name: `${at}: process`, value: large.memoryMib, unit: 'MiB', target: '<= 180' },
    {
      name: 'one change, 10,000 against 1,000',
      value: large.changeMs / small.changeMs,
      unit: 'x',
      target: '<= 1.5',
    },
  ]
}

async function measure(services: number) {
  const tracker = new Tracker({
    families: ['IPv4', 'IPv6'],
    nodeName: 'node-1',
    bindAddress: '0.0.0.0',
    nodePortAddresses: [],
    detectLocal: { mode: 'ClusterCIDR', cidrs: ['10.244.0.0/16'] },
    allowsExternalIps: true,
  })
  const start = performance.now()
  for (let index = 0; index < services; index++) {
    accept(parseService(rawService(index)), (value) => tracker.upsertService(value))
    accept(parseEndpointSlice(rawSlice(index, 0)), (value) => tracker.upsertEndpointSlice(value))
    // The parser sees one object at a time; let the collector do so too, as page by page does.
    if (index % 1_000 === 999) await new Promise((resolve) => setImmediate(resolve))
  }
  let state = tracker.take().states[0]
  const firstBuildMs = performance.now() - start
  const times: number[] = []
  for (let change = 0; change < changes; change++) {
    const raw = rawSlice((change * 37) % services, change + 1)
    const began = performance.now()
    accept(parseEndpointSlice(raw), (value) => tracker.upsertEndpointSlice(value))
    const next = tracker.take()
    times.push(performance.now() - began)
    const changed = next.changed.get('IPv4')
    if (changed !== 1) throw new Error(`expected one change, got ${String(changed)}`)
    state = next.states[0]
  }
  if (state?.services.size !== services) throw new Error('services are missing')
  times.sort((a, b) => a - b)
  return {
    services,
    firstBuildMs,
    changeMs: times[changes >> 1] ?? NaN,
    memoryMib: process.memoryUsage.rss() / 2 ** 20,
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
      clusterIP: `10.96.${index >> 8}.${index & 255}`,
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
    },
  }
}

function rawSlice(index: number, generation: number): unknown {
  return {
    metadata: {
      name: `service-${index}-abcde`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': `service-${index}` },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: Array.from({ length: endpointsPerService }, (_, endpoint) => ({
      addresses: [
        `10.244.${((index * 10 + endpoint + (endpoint === 0 ? generation : 0)) >> 8) & 255}.${(index * 10 + endpoint + (endpoint === 0 ? generation : 0)) & 255}`,
      ],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName: `node-${endpoint}`,
    })),
  }
}
