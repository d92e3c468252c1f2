import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { CheckThread } from '../lib/sources/health/check-thread.js'
import { HealthChecks } from '../lib/sources/health/health-checks.js'
import { parseEndpointSlice } from '../lib/state/parse-endpoint-slice.js'
import { parseService } from '../lib/state/parse-service.js'
import { Tracker } from '../lib/state/tracker.js'
import type { BenchResult, BenchResults } from './support/results.js'

const endpointsPerService = 10
/** The default, which is also the default of the probes of a kubelet. */
const intervalSeconds = 10
const measuredSeconds = Number(process.env['BENCH_HEALTH_SECONDS'] ?? 20)

/** Every address of 127.0.0.0/8 is this machine, so one listener serves all endpoints. */
const server = `
  require('node:net').createServer({ highWaterMark: 4096 }, (socket) => {
    socket.on('error', () => {})
    socket.on('data', () => socket.end('HTTP/1.1 200 OK\\r\\n\\r\\n'))
  }).listen({ port: 0, host: '0.0.0.0', backlog: 4096 }, function () {
    console.log(this.address().port)
  })`

/** What it costs to check 5,000 and 10,000 endpoints, and whether checks come in time. */
export async function run(): Promise<BenchResults> {
  const child = spawn(process.execPath, ['-e', server], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    const [line] = (await once(child.stdout, 'data')) as [Buffer]
    const port = Number(line)
    const rows: BenchResult[] = []
    for (const [check, endpoints, target] of [
      ['tcp', 5_000, '<= 3'],
      ['http:/healthz', 5_000, undefined],
      ['tcp', 10_000, undefined],
    ] as const) {
      const { cpu, done } = await measure(check, endpoints, port)
      const name = `${check}, ${endpoints.toLocaleString('en-US')} endpoints every ${intervalSeconds} s`
      console.log(
        `${name}: ${cpu.toFixed(2)} % of a core, ${(done * 100).toFixed(1)} % of the checks`,
      )
      rows.push({
        ...{ name: `${name}: of one core`, value: cpu, unit: '%' },
        ...(target === undefined ? {} : { target }),
        note: `${(done * 100).toFixed(1)} % of the checks that were due`,
      })
    }
    return rows
  } finally {
    child.kill('SIGKILL')
  }
}

async function measure(check: string, endpoints: number, port: number) {
  const tracker = new Tracker({
    ...{ families: ['IPv4'], nodeName: 'node-1', bindAddress: '0.0.0.0', nodePortAddresses: [] },
    detectLocal: { mode: 'NodeCIDR' },
    allowsExternalIps: true,
  })
  let counted = 0
  const checks = new HealthChecks({
    checker: (options) => new CheckThread(options),
    tracker,
    requestSync: () => undefined,
    listener: {
      followed: () => undefined,
      turned: (_health, [turn]) => console.log('an endpoint turned:', turn),
      counted: ({ good }) => (counted += good),
      threadEnded: (reason) => console.log(reason),
    },
  })
  const stop = new AbortController()
  const running = checks.run(stop.signal)
  fill(tracker, check, endpoints, port)
  checks.started(tracker.take())
  // The first round also opens sockets and compiles code.
  await delay(1.5 * intervalSeconds * 1000)
  const before = { cpu: process.cpuUsage(), counted, at: performance.now() }
  await delay(measuredSeconds * 1000)
  const { user, system } = process.cpuUsage(before.cpu)
  const ms = performance.now() - before.at
  const due = (endpoints * ms) / 1000 / intervalSeconds
  const done = (counted - before.counted) / due
  stop.abort()
  await running
  return { cpu: ((user + system) / 1000 / ms) * 100, done }
}

function fill(tracker: Tracker, check: string, endpoints: number, port: number): void {
  for (let index = 0; index < endpoints / endpointsPerService; index++) {
    const name = `service-${index}`
    const service = parseService({
      metadata: {
        ...{ name, namespace: 'default' },
        annotations: {
          'kube-proxy-ts/health-check': check,
          'kube-proxy-ts/health-check-interval': `${intervalSeconds}s`,
        },
      },
      spec: {
        clusterIP: `10.96.${index >> 8}.${index & 255}`,
        ports: [{ protocol: 'TCP', port: 80 }],
      },
    })
    const slice = parseEndpointSlice(
      {
        metadata: {
          ...{ name, namespace: 'default' },
          labels: { 'kubernetes.io/service-name': name },
        },
        addressType: 'IPv4',
        ports: [{ name: '', protocol: 'TCP', port }],
        endpoints: Array.from({ length: endpointsPerService }, (_, each) => {
          const number = index * endpointsPerService + each
          return { addresses: [`127.1.${number >> 8}.${number & 255}`] }
        }),
      },
      { allowsLoopback: true },
    )
    if (service.outcome !== 'accepted' || slice.outcome !== 'accepted') throw new Error('refused')
    tracker.upsertService(service.value)
    tracker.upsertEndpointSlice(slice.value)
  }
}
