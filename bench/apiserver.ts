import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import type { BenchResults } from './support/results.js'

const services = 10_000
const watchers = 5
const changesPerSecond = 200
const seconds = 10

const paths = ['/api/v1/services', '/apis/discovery.k8s.io/v1/endpointslices'] as const
const agent = new Agent({ keepAlive: true, maxSockets: 16 })

/** The embedded API server with 10,000 Services and as many slices, and 5 watchers of both. */
export async function run(): Promise<BenchResults> {
  const { child, url } = await startServer()
  try {
    const loadMs = await timed(() => load(url))
    const loadedMib = rssMib(child)
    const listMs = await timed(() => Promise.all(paths.map((path) => send(url + path, 'GET'))))
    const arrivals = new Map<string, number[]>()
    const stop = new AbortController()
    await Promise.all(Array.from({ length: watchers }, () => watch(url, arrivals, stop.signal)))
    const before = cpuMs(child)
    const { sent, peakMib } = await change(url, child)
    await delay(500)
    stop.abort()
    return report({
      loadMs,
      loadedMib,
      listMs,
      peakMib,
      sent,
      arrivals,
      cpu: cpuMs(child) - before,
    })
  } finally {
    child.kill('SIGTERM')
    agent.destroy()
  }
}

interface Result {
  readonly loadMs: number
  readonly loadedMib: number
  readonly listMs: number
  readonly peakMib: number
  readonly sent: ReadonlyMap<string, number>
  readonly arrivals: ReadonlyMap<string, readonly number[]>
  readonly cpu: number
}

function report({ loadMs, loadedMib, listMs, peakMib, sent, arrivals, cpu }: Result): BenchResults {
  const complete = [...sent].filter(([mark]) => arrivals.get(mark)?.length === watchers)
  const latencies = complete
    .map(([mark, at]) => Math.max(...(arrivals.get(mark) ?? [])) - at)
    .sort((left, right) => left - right)
  const quantile = (share: number) => latencies[Math.floor(latencies.length * share)] ?? NaN
  console.table([
    {
      'load s': (loadMs / 1000).toFixed(1),
      'list all ms': listMs.toFixed(0),
      'MiB loaded': loadedMib.toFixed(0),
      'MiB peak': peakMib.toFixed(0),
      'changes/s': (sent.size / seconds).toFixed(0),
      'seen by all': `${complete.length}/${sent.size}`,
      'p50 ms': quantile(0.5).toFixed(1),
      'p99 ms': quantile(0.99).toFixed(1),
      'CPU %': ((cpu / seconds / 1000) * 100).toFixed(0),
    },
  ])
  console.log(`target: ${changesPerSecond} changes/s to ${watchers} watchers within 300 MiB`)
  const rate = complete.length / seconds
  return [
    {
      name: `changes seen by ${watchers} watchers`,
      value: rate,
      unit: '/s',
      target: `>= ${changesPerSecond}`,
    },
    {
      name: '10,000 Services and slices: memory at the peak',
      value: peakMib,
      unit: 'MiB',
      target: '<= 300',
    },
    { name: 'a change until the last watcher has it, p50', value: quantile(0.5), unit: 'ms' },
    { name: 'a change until the last watcher has it, p99', value: quantile(0.99), unit: 'ms' },
  ]
}

async function startServer(): Promise<{ child: ChildProcessWithoutNullStreams; url: string }> {
  const main = new URL('../lib/main.js', import.meta.url).pathname
  const child = spawn(process.execPath, [main, 'apiserver', '--listen', '127.0.0.1:0'])
  for await (const chunk of child.stdout as AsyncIterable<Buffer>) {
    const url = /http:\/\/\S+/.exec(chunk.toString())?.[0]
    if (url !== undefined) return { child, url }
  }
  throw new Error('the API server ended before it listened')
}

async function load(url: string): Promise<void> {
  const batch = 100
  for (let from = 0; from < services; from += batch) {
    const indexes = Array.from({ length: batch }, (_, offset) => from + offset)
    await Promise.all(
      indexes.flatMap((index) => [
        send(`${url}/api/v1/namespaces/default/services`, 'POST', serviceOf(index)),
        send(
          `${url}/apis/discovery.k8s.io/v1/namespaces/default/endpointslices`,
          'POST',
          sliceOf(index, ''),
        ),
      ]),
    )
  }
}

async function change(url: string, child: ChildProcessWithoutNullStreams) {
  const sent = new Map<string, number>()
  const pending: Promise<unknown>[] = []
  const start = performance.now()
  let peakMib = 0
  for (let count = 0; count < changesPerSecond * seconds; count++) {
    await delay(Math.max(0, start + (count * 1000) / changesPerSecond - performance.now()))
    const mark = `change-${count}`
    const index = (count * 37) % services
    sent.set(mark, performance.now())
    const path = `/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/s${index}-1`
    pending.push(send(url + path, 'PUT', sliceOf(index, mark)))
    if (count % 20 === 0) peakMib = Math.max(peakMib, rssMib(child))
  }
  await Promise.all(pending)
  return { sent, peakMib: Math.max(peakMib, rssMib(child)) }
}

/** Notes when each mark arrives; resolves once both watches have begun. */
async function watch(
  url: string,
  arrivals: Map<string, number[]>,
  signal: AbortSignal,
): Promise<void> {
  const opened = paths.map(async (path) => {
    const list = JSON.parse(await send(`${url}${path}?limit=1`, 'GET')) as {
      metadata: { resourceVersion: string }
    }
    const query = `?watch=true&resourceVersion=${list.metadata.resourceVersion}`
    await new Promise<void>((resolve) => {
      const outgoing = request(url + path + query, { signal }, (response) => {
        resolve()
        response.on('data', (chunk: Buffer) => {
          for (const [mark] of chunk.toString().matchAll(/change-\d+/g)) {
            arrivals.set(mark, [...(arrivals.get(mark) ?? []), performance.now()])
          }
        })
        response.on('error', () => undefined)
      })
      outgoing.on('error', () => undefined)
      outgoing.end()
    })
  })
  await Promise.all(opened)
}

function send(url: string, method: string, body?: object): Promise<string> {
  return new Promise((resolve, reject) => {
    const headers = { 'Content-Type': 'application/json' }
    const outgoing = request(url, { method, agent, headers }, (response) => {
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString()
        if ((response.statusCode ?? 500) < 300) resolve(text)
        else reject(new Error(`${method} ${url}: ${text}`))
      })
    })
    outgoing.on('error', reject)
    outgoing.end(body === undefined ? undefined : JSON.stringify(body))
  })
}

function serviceOf(index: number): object {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: `s${index}`, labels: { app: `s${index}` } },
    spec: { ports: [{ name: 'http', port: 80, targetPort: 8080 }] },
  }
}

function sliceOf(index: number, mark: string): object {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `s${index}-1`,
      labels: { 'kubernetes.io/service-name': `s${index}` },
      annotations: { mark },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
    endpoints: Array.from({ length: 10 }, (_, pod) => ({
      addresses: [`10.${100 + (index >> 8)}.${index & 255}.${pod + 1}`],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName: `node-${pod}`,
    })),
  }
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now()
  await work()
  return performance.now() - start
}

function rssMib(child: ChildProcessWithoutNullStreams): number {
  const status = readFileSync(`/proc/${child.pid ?? 0}/status`, 'utf8')
  return Number(/VmRSS:\s+(\d+)/.exec(status)?.[1] ?? 0) / 1024
}

/** User and system time so far; a tick of /proc is 10 ms. */
function cpuMs(child: ChildProcessWithoutNullStreams): number {
  const stat = readFileSync(`/proc/${child.pid ?? 0}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * 10
}
