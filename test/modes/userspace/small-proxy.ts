/**
 * Runs only the workers of userspace mode, for a test that gives a process too few descriptors.
 * Usage: small-proxy.js DATAPATH ENDPOINT-PORT. It prints the ports of its listeners, and then what
 * happens, each as a line of JSON.
 */
import {
  DescriptorBudget,
  descriptorLimit,
  waitingLimit,
} from '../../../lib/modes/userspace/datapath/descriptors.js'
import { Listeners } from '../../../lib/modes/userspace/listeners/listeners.js'
import type { ListenerSpec } from '../../../lib/modes/userspace/datapath/data-path.js'

const [dataPath = 'net', endpoint = ''] = process.argv.slice(2)
const host = '127.0.0.1'
const say = (news: object) => process.stdout.write(`${JSON.stringify(news)}\n`)

const limit = descriptorLimit()
const budget = new DescriptorBudget(DescriptorBudget.allocate(limit, waitingLimit(limit)))
const listeners = new Listeners(
  {
    workers: 2,
    dataPath: dataPath === 'splice' ? 'splice' : 'net',
    passiveHealth: true,
    accessLog: 'none',
    descriptors: budget.shared,
    range: undefined,
    meter: { count() {}, gauge() {}, observe() {}, forget() {} },
  },
  {
    reported: (report) => {
      const shortages = budget.takeShortages()
      if (report.kind === 'counts') say({ shortages, left: budget.left })
      if (report.kind === 'warning') say({ shortages, warning: report.message })
    },
    closed: () => undefined,
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

// Each worker gets some of them.
const specs = ['a', 'b', 'c', 'd'].map(specOf)
const failed = await listeners.ensure(specs)
say({ ports: specs.map(({ key }) => listeners.portOf(key)), failed, left: budget.left })
