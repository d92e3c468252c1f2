/**
 * The userspace mode's workers with listeners for the load server's ports, without iptables.
 * Usage: proxy-under-test.js DATAPATH WORKERS LISTEN-ADDRESS SERVER-ADDRESS [CHANGES-PER-SECOND [OTHERS [udp-ends]]]
 * Others are Services without traffic, with 10 endpoints each, which change as well. With `udp-ends`
 * UDP endpoints change too, and every second a line of JSON tells how UDP clients have ended so far. A
 * line on stdin makes the changes pause, or go on.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import {
  DescriptorBudget,
  descriptorLimit,
} from '../../lib/modes/userspace/datapath/descriptors.js'
import type { DataPathName, ListenerSpec } from '../../lib/modes/userspace/datapath/data-path.js'
import { Listeners } from '../../lib/modes/userspace/listeners/listeners.js'
import { ports, requestBytes } from './services.js'

const [
  name = 'splice',
  workers = '1',
  address = '',
  server = '',
  changesPerSecond = '0',
  others = '0',
  tells = '',
] = process.argv.slice(2)
/** By the reason of the end: datagrams that clients sent to endpoints, and got back from them. */
const udpEnds: Record<string, { asked: number; answered: number }> = {}
const dataPath: DataPathName = name === 'net' ? 'net' : 'splice'
const listeners = new Listeners(
  {
    workers: Number(workers),
    dataPath,
    passiveHealth: true,
    accessLog: tells === '' ? 'none' : 'all',
    descriptors: DescriptorBudget.allocate(descriptorLimit()),
    range: undefined,
    meter: { count() {}, gauge() {}, observe() {}, forget() {} },
  },
  {
    reported: (report) => {
      if (report.kind === 'warning') process.stderr.write(`${report.message}\n`)
      if (report.kind !== 'access') return
      for (const { protocol, end, bytesToEndpoint, bytesToClient } of report.entries) {
        if (protocol !== 'UDP') continue
        const sum = (udpEnds[end] ??= { asked: 0, answered: 0 })
        sum.asked += bytesToEndpoint / requestBytes
        sum.answered += bytesToClient / requestBytes
      }
    },
    closed: () => undefined,
    lost: (reason) => process.stderr.write(`${reason}\n`),
  },
)

/** The short service has several endpoints, which a proxy takes in turn. */
function specOf(port: number, protocol: 'TCP' | 'UDP', endpoints: readonly number[]): ListenerSpec {
  return {
    key: `${protocol} ${port}`,
    service: `bench/load:${port}`,
    protocol,
    address,
    port,
    endpoints: endpoints.map((to) => ({ key: `${server}:${to}`, ip: server, port: to })),
    servingKeys: [],
    affinityMs: undefined,
    udpIdleMs: 10_000,
  }
}

function otherSpecs(endpoints: number): ListenerSpec[] {
  const targets = Array.from({ length: endpoints }, (_, index) => 8000 + index)
  return Array.from({ length: Number(others) }, (_, index) =>
    specOf(20_000 + index, 'TCP', targets),
  )
}

/** The other Services lose an endpoint and get it back, in turns. */
const [fewer, all] = [otherSpecs(9), otherSpecs(10)]
let next = fewer
const failed = await listeners.ensure([
  ...all,
  specOf(ports.short[0], 'TCP', ports.short),
  ...[ports.echo, ports.sink, ports.source].map((port) => specOf(port, 'TCP', [port])),
  specOf(ports.udp, 'UDP', [ports.udp]),
])
if (failed.length > 0) throw new Error(JSON.stringify(failed))
process.stdout.write('ready\n')
if (tells !== '') setInterval(() => console.log(JSON.stringify(udpEnds)), 1000)

const changes = { arePaused: false }
process.stdin.on('data', () => (changes.arePaused = !changes.arePaused))

/** Endpoints come and go while connections to them are open; the connections must live on. */
while (Number(changesPerSecond) > 0) {
  await sleep(1000 / Number(changesPerSecond))
  if (changes.arePaused) continue
  const some = ports.short.filter(() => Math.random() < 0.5)
  const update = [
    ...next,
    specOf(ports.short[0], 'TCP', some.length > 0 ? some : ports.short),
    specOf(ports.echo, 'TCP', Math.random() < 0.5 ? [ports.echo] : [ports.echo, ports.echo2]),
  ]
  if (tells !== '') {
    const one = Math.random() < 0.5 ? ports.udp : ports.udp2
    update.push(specOf(ports.udp, 'UDP', Math.random() < 0.5 ? [one] : [ports.udp, ports.udp2]))
  }
  next = next === fewer ? all : fewer
  await listeners.ensure(update)
}
