/**
 * The userspace mode's worker pool with listeners for the load server's ports, without iptables.
 * Usage: proxy-under-test.js DATAPATH WORKERS LISTEN-ADDRESS SERVER-ADDRESS [CHANGES-PER-SECOND [OTHERS]]
 * Others are Services without traffic, with 10 endpoints each, which change as well.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { DescriptorBudget, descriptorLimit } from '../../lib/modes/userspace/descriptors.js'
import type { DataPathName, ListenerSpec } from '../../lib/modes/userspace/datapath.js'
import { WorkerPool } from '../../lib/modes/userspace/pool.js'
import { ports } from './services.js'

const [
  name = 'splice',
  workers = '1',
  address = '',
  server = '',
  changesPerSecond = '0',
  others = '0',
] = process.argv.slice(2)
const dataPath: DataPathName = name === 'net' ? 'net' : 'splice'
const pool = new WorkerPool(
  {
    workers: Number(workers),
    dataPath,
    passiveHealth: true,
    accessLog: false,
    descriptors: DescriptorBudget.allocate(descriptorLimit()),
  },
  {
    ready: () => undefined,
    counts: () => undefined,
    access: () => undefined,
    warning: (message) => process.stderr.write(`${message}\n`),
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

/** Every second one ready endpoint fewer, and back. */
function otherSpecs(endpoints: number): ListenerSpec[] {
  const targets = Array.from({ length: endpoints }, (_, index) => 8000 + index)
  return Array.from({ length: Number(others) }, (_, index) =>
    specOf(20_000 + index, 'TCP', targets),
  )
}

const outcome = await pool.change({
  open: [
    ...otherSpecs(10),
    specOf(ports.short[0], 'TCP', ports.short),
    ...[ports.echo, ports.sink, ports.source].map((port) => specOf(port, 'TCP', [port])),
    specOf(ports.udp, 'UDP', [ports.udp]),
  ],
  update: [],
  close: [],
})
if (outcome.failed.length > 0) throw new Error(JSON.stringify(outcome.failed))
process.stdout.write('ready\n')

/** Endpoints come and go, also while connections to them are open; those have to live on. */
while (Number(changesPerSecond) > 0) {
  await sleep(1000 / Number(changesPerSecond))
  const some = ports.short.filter(() => Math.random() < 0.5)
  const update = [
    ...otherSpecs(Math.random() < 0.5 ? 10 : 9),
    specOf(ports.short[0], 'TCP', some.length > 0 ? some : ports.short),
    specOf(ports.echo, 'TCP', Math.random() < 0.5 ? [ports.echo] : [ports.echo, ports.echo2]),
  ]
  await pool.change({ open: [], update, close: [] })
}
