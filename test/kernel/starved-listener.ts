/**
 * One listener of the kind that the argument names, in a process whose descriptors another thread
 * takes. It prints a line of JSON for each command: `starve`, `measure`, `feed`.
 */
import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { ClientConnections } from '../../lib/observe/client-connections.js'
import { runHttpServer, text } from '../../lib/observe/http.js'
import { ServiceHealth } from '../../lib/observe/service-health.js'
import { Admission } from '../../lib/modes/nftables/admission.js'
import { LocalhostPorts } from '../../lib/modes/nftables/localhost-ports.js'
import { nftablesPlanner } from '../../lib/modes/nftables/plan.js'
import { createDataPath } from '../../lib/modes/userspace/datapath/create-data-path.js'
import { DescriptorBudget } from '../../lib/modes/userspace/datapath/descriptors.js'
import { ReservedNodePorts } from '../../lib/modes/userspace/portals/reserved-node-ports.js'
import { service, states, testSettings } from '../support/states.js'

const [kind = '', portText = '', endpointText = ''] = process.argv.slice(2)
const [port, endpointPort] = [Number(portText), Number(endpointText)]
const host = '127.0.0.1'
const signal = new AbortController().signal
const silent = () => undefined
const log = { debug: silent, info: silent, warn: silent, error: silent }
const meter = { count: silent, gauge: silent }
const pause = (ms: number) => sleep(ms).then(silent)
const descriptors = new DescriptorBudget(DescriptorBudget.allocate(100, 10))
// The write is synchronous, because a line must not need a turn of the loop that is measured.
const say = (news: object) => writeSync(1, `${JSON.stringify(news)}\n`)

async function serve(dataPath: 'net' | 'splice'): Promise<void> {
  const { path } = await createDataPath(dataPath, {
    now: () => performance.now(),
    random: Math.random,
    descriptors,
    passiveHealth: false,
    accessLog: undefined,
    warn: silent,
  })
  await path.open({
    key: 'IPv4 default/a:tcp/TCP cluster',
    service: 'default/a:tcp',
    protocol: 'TCP',
    address: host,
    port,
    endpoints: [{ key: `${host}:${endpointPort}`, ip: host, port: endpointPort }],
    servingKeys: [],
    affinityMs: undefined,
    udpIdleMs: 250,
  })
}

const kinds: Readonly<Record<string, () => Promise<unknown>>> = {
  net: () => serve('net'),
  splice: () => serve('splice'),
  'node port claim': () =>
    new ReservedNodePorts(descriptors).reserve('a', {
      family: 'IPv4',
      protocol: 'TCP',
      port,
      addresses: [host],
    }),
  'localhost node port': () => {
    const admission = new Admission({ log, now: () => performance.now() })
    const cluster = states('IPv4', { nodePortAddresses: ['127.0.0.0/8'] })
    cluster.put(service({ nodePort: port, endpoints: [{ ip: host, port: endpointPort }] }))
    const ports = new LocalhostPorts({ log, meter, random: () => 0, now: () => 0, admission })
    return ports.update(nftablesPlanner(testSettings)(cluster.take()))
  },
  health: async () => {
    const handler = () => text('well')
    const ends = { failHard: false, retryMs: 500, failed: silent, sleep: pause }
    void runHttpServer({ host, port, handler, clients: new ClientConnections(), ...ends }, signal)
    await sleep(200)
  },
  'service health': async () => {
    const ends = { retryMs: 500, failed: silent, sleep: pause }
    const health = new ServiceHealth({
      isHealthy: () => true,
      clients: new ClientConnections(),
      ...ends,
    })
    const target = { namespace: 'd', name: 'a', port, localEndpoints: { IPv4: 1 } }
    health.set(new Map([['d/a', target]]), [host])
    void health.run(signal)
    await sleep(200)
  },
}

/** The orders to the thread that takes descriptors: take all, keep them, give them back. */
const order = new Int32Array(new SharedArrayBuffer(8))
const [orders, taken] = [0, 1]
const steps = { take: 1, keep: 2, giveBack: 3 }
const thief = `
  const { openSync, closeSync } = require('node:fs')
  const order = require('node:worker_threads').workerData
  const held = []
  while (Atomics.load(order, 0) === 1) {
    try { held.push(openSync('/dev/null', 'r')) } catch { Atomics.store(order, 1, 1) }
  }
  while (Atomics.load(order, 0) === 2) Atomics.wait(order, 0, 2)
  for (const descriptor of held) closeSync(descriptor)
`

async function obey(command: string): Promise<void> {
  if (command === 'starve') {
    Atomics.store(order, orders, steps.take)
    new Worker(thief, { eval: true, workerData: order })
    while (Atomics.load(order, taken) === 0) await sleep(5)
    say({ starved: true })
  } else if (command === 'measure') {
    Atomics.store(order, orders, steps.keep)
    await sleep(100)
    const [before, began] = [process.cpuUsage(), performance.now()]
    await sleep(500)
    const { user, system } = process.cpuUsage(before)
    say({ busy: (user + system) / 1000 / (performance.now() - began) })
  } else {
    Atomics.store(order, orders, steps.giveBack)
    Atomics.notify(order, orders)
    say({ fed: true })
  }
}

createInterface({ input: process.stdin }).on('line', (command) => void obey(command))
await kinds[kind]?.()
say({ listens: true })
