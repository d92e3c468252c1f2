import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { rejectedIn } from '../../../lib/observe/otlp/delivery.js'
import { Exporter, type ExporterOptions } from '../../../lib/observe/otlp/exporter.js'
import { FlowLog } from '../../../lib/observe/flows/flow-log.js'
import { exported } from '../../../lib/observe/otlp/form.js'
import { Metrics, metricTable } from '../../../lib/observe/metrics.js'
import type { FlowLine } from '../../../lib/observe/flows/line.js'
import { untilTrue } from '../../support/until.js'

/** What an OpenTelemetry collector gets, and what happens when it does not take it. */

interface Got {
  readonly path: string
  readonly at: number
  readonly body: Body
}

interface Attribute {
  readonly key: string
  readonly value: { readonly stringValue?: string; readonly intValue?: string }
}

interface Metric {
  readonly name: string
  readonly unit: string
  readonly sum: {
    readonly aggregationTemporality: number
    readonly isMonotonic: boolean
    readonly dataPoints: readonly {
      readonly attributes: readonly Attribute[]
      readonly startTimeUnixNano: string
      readonly timeUnixNano: string
      readonly asInt: string
    }[]
  }
}

interface Body {
  readonly resourceLogs?: readonly {
    readonly resource: { readonly attributes: readonly Attribute[] }
    readonly scopeLogs: readonly {
      readonly scope: { readonly name: string }
      readonly logRecords: readonly {
        readonly timeUnixNano: string
        readonly observedTimeUnixNano: string
        readonly severityText: string
        readonly body: { readonly stringValue: string }
        readonly attributes: readonly Attribute[]
      }[]
    }[]
  }[]
  readonly resourceMetrics?: readonly {
    readonly scopeMetrics: readonly { readonly metrics: readonly Metric[] }[]
  }[]
}

const line = (at: number, more: Partial<FlowLine> = {}): FlowLine => ({
  ...{ at, event: 'opened', verdict: 'forwarded', why: '', protocol: 'TCP' },
  ...{ client: '10.244.1.7:40000', service: 'default/web:http', address: '10.96.0.10:80' },
  endpoint: '10.244.2.3:8080',
  ...more,
})

const recordsOf = ({ body }: Got) => body.resourceLogs?.[0]?.scopeLogs[0]?.logRecords ?? []
const textsOf = (attributes: readonly Attribute[]) =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, value.stringValue ?? value.intValue]))

type Answer = (request: IncomingMessage, response: ServerResponse, count: number) => void
const ok: Answer = (_, response) => void response.end('{}')

/** A running exporter and its collector. */
async function started(t: Test, answer: Answer = ok, pace: ExporterOptions['pace'] = {}) {
  const got: Got[] = []
  const server = createServer((request, response) => {
    const pieces: Buffer[] = []
    request.on('data', (piece: Buffer) => pieces.push(piece))
    request.on('end', () => {
      const body = JSON.parse(Buffer.concat(pieces).toString()) as Body
      got.push({ path: request.url ?? '', at: Date.now(), body })
      answer(request, response, got.length)
    })
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const address = server.address()
  const port = typeof address === 'object' ? (address?.port ?? 0) : 0
  const metrics = new Metrics({ mode: 'nftables', process: false })
  const lines = new FlowLog(10, () => '')
  const said: string[] = []
  const note = (fields: object, message: string) =>
    void said.push(`${message}: ${JSON.stringify(fields)}`)
  const exporter = new Exporter({
    endpoint: `http://127.0.0.1:${port}/otlp/`,
    sender: { node: 'node-1', mode: 'nftables', version: '1.2.3' },
    ...{ lines, metrics },
    log: { debug: note, info: note, warn: note, error: note },
    // `random` shortens a wait of a second to 500 ms.
    pace: { linesEveryMs: 5, numbersEveryMs: 20, timeoutMs: 300_000, random: () => 0, ...pace },
  })
  const stop = new AbortController()
  let count: () => void = () => undefined
  const isCounting = new Promise<void>((resolve) => (count = resolve))
  const running = exporter.run(isCounting, stop.signal)
  t.teardown(async () => {
    stop.abort()
    await running
    server.closeAllConnections()
    server.close()
  })
  const logs = () => got.filter(({ path }) => path === '/otlp/v1/logs')
  const numbers = () => got.filter(({ path }) => path === '/otlp/v1/metrics')
  const counter = async (name: string, label = '') => {
    const all = await metrics.readSeries([name])
    return all.filter((each) => label === '' || each.label('outcome') === label)[0]?.value ?? 0
  }
  const world = { lines, metrics, said, exporter, server, stop, running }
  return { ...world, logs, numbers, counter, count: () => count() }
}

t.test('what is exported exists, as a number of that kind', (t) => {
  for (const { own, grows = false } of exported) {
    const spec = metricTable.find(({ name }) => name === own)
    t.equal(spec?.type, grows ? 'counter' : 'gauge', own)
  }
  t.end()
})

t.test('connections are log records, with the fields of the stream as attributes', async (t) => {
  const { lines, logs } = await started(t)
  lines.add(
    [
      line(1_700_000_000_123),
      line(1_700_000_000_200, {
        ...{ event: 'ended', verdict: 'refused', why: 'ECONNREFUSED', endpoint: '' },
        ...{ durationMs: 7, bytesToEndpoint: 2 ** 40, bytesToClient: 0 },
      }),
    ],
    0,
  )
  await untilTrue(() => logs().length > 0)
  const [sent] = logs()
  if (!sent) throw new Error('nothing was sent')
  const [resource] = sent.body.resourceLogs ?? []
  t.same(textsOf(resource?.resource.attributes ?? []), {
    ...{ 'service.name': 'kube-proxy', 'service.version': '1.2.3' },
    ...{ 'k8s.node.name': 'node-1', 'kubeproxy.mode': 'nftables' },
  })
  t.equal(resource?.scopeLogs[0]?.scope.name, 'kube-proxy-ts')
  const [opened, refused] = recordsOf(sent)
  t.equal(opened?.timeUnixNano, '1700000000123000000')
  t.match(opened?.observedTimeUnixNano, /^\d{19}$/)
  t.match(opened, {
    severityText: 'INFO',
    body: { stringValue: 'forwarded: 10.244.1.7:40000 to default/web:http, opened' },
  })
  t.same(textsOf(opened?.attributes ?? []), {
    ...{ 'flow.event': 'opened', 'flow.verdict': 'forwarded', 'flow.protocol': 'TCP' },
    ...{ 'flow.client': '10.244.1.7:40000', 'flow.service': 'default/web:http' },
    ...{ 'flow.address': '10.96.0.10:80', 'flow.endpoint': '10.244.2.3:8080' },
  })
  t.equal(refused?.severityText, 'WARN')
  t.match(textsOf(refused?.attributes ?? []), {
    ...{ 'flow.why': 'ECONNREFUSED', 'flow.durationMs': '7' },
    ...{ 'flow.bytesToEndpoint': '1099511627776', 'flow.bytesToClient': '0' },
  })
  lines.add([line(3)], 0)
  await untilTrue(() => logs().length > 1)
  t.equal(recordsOf(logs()[1] ?? sent).length, 1, 'each is sent once')
})

t.test('numbers are cumulative sums per Service, from the first reading on', async (t) => {
  const { metrics, numbers, count } = await started(t)
  const web = { service: 'default/web:http', protocol: 'TCP' }
  const connected = (endpoint: string, by: number) =>
    metrics.count('service_connections_total', { ...web, endpoint }, by)
  // These connections were counted by the process before.
  connected('10.244.1.1:80', 1_000)
  metrics.gauge('service_active_connections', web, 4)
  await delay(50)
  t.equal(numbers().length, 0, 'nothing is read before the first sync')
  const began = Date.now()
  count()
  await untilTrue(() => numbers().length > 0)
  connected('10.244.1.1:80', 2)
  connected('10.244.1.2:80', 3)
  const to = { ...web, endpoint: '10.244.1.2:80', direction: 'to_client' }
  metrics.count('service_bytes_total', to, 77)
  metrics.gauge('service_active_connections', web, 1)
  const seen = numbers().length
  await untilTrue(() => numbers().length > seen + 1)
  const of = (got: Got | undefined, name: string) =>
    got?.body.resourceMetrics?.[0]?.scopeMetrics[0]?.metrics.find((each) => each.name === name)
  const connections = 'kubeproxy.service.connections'
  t.match(of(numbers()[0], connections)?.sum.dataPoints[0], { asInt: '0' })
  const last = numbers().at(-1)
  const { unit, sum } = of(last, connections) ?? {}
  t.equal(unit, '{connection}')
  t.match(sum, { aggregationTemporality: 2, isMonotonic: true })
  t.equal(sum?.dataPoints.length, 1, 'one a Service, not one an endpoint')
  const [point] = sum?.dataPoints ?? []
  t.equal(point?.asInt, '5', 'without those that were counted before')
  t.same(textsOf(point?.attributes ?? []), web)
  t.match(point?.startTimeUnixNano, /^\d{13}000000$/)
  const startedAt = Number(point?.startTimeUnixNano.slice(0, 13))
  t.ok(startedAt >= began && startedAt < Number(point?.timeUnixNano.slice(0, 13)))
  t.match(of(last, 'kubeproxy.service.active_connections')?.sum, {
    ...{ aggregationTemporality: 2, isMonotonic: false, dataPoints: [{ asInt: '1' }] },
  })
  const bytes = of(last, 'kubeproxy.service.bytes')
  t.equal(bytes?.unit, 'By')
  t.match(bytes?.sum.dataPoints[0], { asInt: '77' }, 'what came later began with 0')
  t.match(textsOf(bytes?.sum.dataPoints[0]?.attributes ?? []), { direction: 'to_client' })

  const isGone = () => {
    const newest = numbers().at(-1)
    return newest !== undefined && of(newest, connections) === undefined
  }
  metrics.gauge('service_active_connections', { ...web, service: 'default/api' }, 1)
  metrics.forget(web)
  await untilTrue(isGone)
  connected('10.244.1.3:80', 1)
  await untilTrue(() => !isGone())
  const anew = of(numbers().at(-1), connections)?.sum.dataPoints[0]
  t.equal(anew?.asInt, '1', 'a number that begins anew has a new start')
  t.ok(Number(anew?.startTimeUnixNano.slice(0, 13)) > startedAt)
})

t.test(
  'an overloaded collector is asked again when it says so, and it is logged once',
  async (t) => {
    const { lines, logs, said, counter } = await started(t, (_, response, count) => {
      if (count > 2) response.end('{}')
      else response.writeHead(503, { 'retry-after': '1' }).end('later')
    })
    lines.add([line(1)], 0)
    await untilTrue(() => logs().length === 3)
    const [first, second, third] = logs()
    t.ok((second?.at ?? 0) - (first?.at ?? 0) >= 990)
    t.same(third?.body.resourceLogs?.[0]?.scopeLogs[0]?.logRecords.length, 1, 'the same line')
    await untilTrue(() => said.length === 2)
    t.match(said, [
      /does not take flows; see flows.otlp.endpoint.*answers 503/,
      /takes flows again/,
    ])
    t.equal(await counter('flow_export_batches_total', 'failed'), 2)
    t.equal(await counter('flow_export_batches_total', 'sent'), 1)
    t.equal(await counter('flow_export_lines_lost_total'), 0)
  },
)

t.test('while nobody answers nothing grows, and what is forgotten is counted', async (t) => {
  const silent = await started(t, () => undefined, { timeoutMs: 30 })
  silent.lines.add([line(1)], 0)
  await untilTrue(() => silent.said.length > 0)
  t.match(silent.said[0], /no answer in 30 ms/)

  const { lines, logs, said, server, counter } = await started(t)
  server.close()
  for (let at = 0; at < 25; at++) lines.add([line(at)], 0)
  await untilTrue(() => said.length > 0)
  t.match(said[0], /ECONNREFUSED/)
  // The buffer of lines keeps ten to twenty here.
  await untilTrue(async () => (await counter('flow_export_lines_lost_total')) > 0)
  t.equal(await counter('flow_export_lines_lost_total'), 11)
  t.equal(logs().length, 0)
  t.equal(said.length, 1, 'logged once, however often it is tried')
})

t.test('what a collector refuses for good is lost, and the next is sent', async (t) => {
  const { lines, logs, said, counter } = await started(t, (_, response, count) => {
    if (count === 1) response.writeHead(400).end()
    else response.end('{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"odd"}}')
  })
  lines.add([line(1), line(2), line(3)], 0)
  await untilTrue(() => logs().length === 1)
  lines.add([line(4), line(5)], 0)
  await untilTrue(() => logs().length === 2)
  t.same(
    logs().map((got) => recordsOf(got).length),
    [3, 2],
  )
  await untilTrue(async () => (await counter('flow_export_lines_lost_total')) === 4)
  lines.add([line(6)], 0)
  await untilTrue(async () => (await counter('flow_export_lines_lost_total')) === 5)
  t.match(said, [/answers 400/, /takes flows again/, /takes only a part.*odd/])
  t.equal(said.length, 3, 'logged once')
  const ofNumbers = '{"partialSuccess":{"rejectedDataPoints":"7","errorMessage":"quota"}}'
  t.same(rejectedIn(ofNumbers), { count: 7, reason: 'quota' })
})

t.test('an answer without end is not read to its end', async (t) => {
  let isLeft = false
  const { lines, counter } = await started(t, (request, response) => {
    const piece = Buffer.alloc(4_096, 'x')
    const write = () => {
      while (!isLeft && response.write(piece));
    }
    request.socket.on('close', () => (isLeft = true))
    response.on('drain', write).on('error', () => undefined)
    write()
  })
  lines.add([line(1)], 0)
  await untilTrue(() => isLeft)
  await untilTrue(async () => (await counter('flow_export_batches_total', 'sent')) === 1)
})

t.test('a collector that hangs does not hold up the end of the proxy', async (t) => {
  const { lines, logs, exporter, stop, running } = await started(t, () => undefined, {
    timeoutMs: 3_600_000,
  })
  lines.add([line(1)], 0)
  await untilTrue(() => logs().length === 1)
  stop.abort()
  await running
  const began = performance.now()
  await exporter.end()
  t.ok(performance.now() - began < 300_000)
  t.equal(logs().length, 2, 'the last lines are sent once more')
})
