/**
 * The workers of userspace mode alone, for a test that gives a whole process too few descriptors.
 * Usage: small-proxy.js DATAPATH ENDPOINT-PORT; prints the ports of two listeners, and then what
 * happened, a line of JSON each.
 */
import {
  DescriptorBudget,
  descriptorLimit,
  waitingSeats,
} from '../../../lib/modes/userspace/datapath/descriptors.js'
import { WorkerPool } from '../../../lib/modes/userspace/listeners/pool.js'
import type { ListenerSpec } from '../../../lib/modes/userspace/datapath/datapath.js'

const [dataPath = 'net', endpoint = ''] = process.argv.slice(2)
const host = '127.0.0.1'
const say = (news: object) => process.stdout.write(`${JSON.stringify(news)}\n`)

const limit = descriptorLimit()
const budget = new DescriptorBudget(DescriptorBudget.allocate(limit, waitingSeats(limit)))
const pool = new WorkerPool(
  {
    workers: 2,
    dataPath: dataPath === 'splice' ? 'splice' : 'net',
    passiveHealth: true,
    accessLog: false,
    descriptors: budget.shared,
  },
  {
    ready: () => undefined,
    counts: () => say({ shortages: budget.takeShortages(), left: budget.left }),
    access: () => undefined,
    warning: (message) => say({ warning: message, shortages: budget.takeShortages() }),
    lost: (reason) => say({ lost: reason }),
  },
)

const specOf = (name: string): ListenerSpec => ({
  key: `IPv4 default/${name}:tcp/TCP cluster`,
  service: `default/${name}:tcp`,
  protocol: 'TCP',
  address: host,
  port: 0,
  endpoints: [{ key: `${host}:${endpoint}`, ip: host, port: Number(endpoint) }],
  servingKeys: [],
  affinityMs: undefined,
  udpIdleMs: 250,
})

// One in either worker.
const names = ['a', 'b', 'c', 'd']
const { opened, failed } = await pool.change({ open: names.map(specOf), update: [], close: [] })
say({ ports: opened.map(({ port }) => port), failed, left: budget.left })
