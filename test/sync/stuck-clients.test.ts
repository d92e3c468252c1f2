import t from 'tap'
import { setTimeout as delay } from 'node:timers/promises'
import { StuckClients } from '../../lib/sync/stuck-clients.js'
import type { ServiceFlow } from '../../lib/kernel/conntrack.js'
import type { IpFamily } from '../../lib/state/ip.js'
import { until } from '../support/until.js'
import { service, states } from '../support/states.js'

const flow = (destination: string, answeredBy = destination): ServiceFlow => ({
  family: 'IPv4',
  destination,
  answeredBy,
})

const client = '10.180.0.9:40001'

/** A table of attempts to connect, and a record of what each listing deletes. */
function tableWith(flows: readonly ServiceFlow[], open: readonly string[] = []) {
  const deleted: (readonly string[])[] = []
  const warnings: unknown[] = []
  let failure: Error | undefined
  const nothing = () => undefined
  const stuck = new StuckClients({
    table: () => ({
      delete: async (_family, { protocol, isStale, isOpen }) => {
        await delay(1)
        if (failure) throw failure
        const gone = flows.filter((each) => isStale(each) && !isOpen?.(client, each))
        const prefix = protocol === 'TCP' ? '' : `${protocol} `
        deleted.push(
          gone.map(
            ({ destination: to, answeredBy: by }) => prefix + to + (by === to ? '' : ` by ${by}`),
          ),
        )
        return { deleted: gone.length, left: 0 }
      },
    }),
    openInIpvs: () => new Set(open),
    now: () => performance.now(),
    log: { debug: nothing, info: nothing, error: nothing, warn: (fields) => warnings.push(fields) },
  })
  return { stuck, deleted, warnings, fail: (error?: Error) => (failure = error) }
}

const web = { name: 'web', clusterIp: '10.96.0.10', port: 80, nodePort: 30080 } as const

t.test('clients are freed that connected before their Service came, and no others', async (t) => {
  const { stuck, deleted } = tableWith([
    flow('10.96.0.10:80'),
    flow('192.0.2.1:30080'),
    flow('10.96.0.10:80', '10.180.0.1:8080'),
    flow('10.96.0.10:81'),
    flow('10.96.0.11:80'),
  ])
  stuck.applied(states('IPv4').put(service(web)).take())
  await stuck.idle()
  t.same(deleted, [['10.96.0.10:80', '192.0.2.1:30080']])
})

t.test('clients are freed whose endpoint left before it answered', async (t) => {
  const at = (n: number) => flow('10.96.0.10:80', `10.180.0.${n}:8080`)
  const { stuck, deleted } = tableWith([
    at(1),
    at(2),
    at(3),
    flow('10.96.0.11:80', '10.180.0.3:80'),
  ])
  const cluster = states('IPv4')
  stuck.applied(cluster.put(service({ ...web, endpoints: 3 })).take())
  await stuck.idle()
  t.same(deleted.splice(0), [[]])
  stuck.applied(cluster.put(service({ ...web, endpoints: 2 })).take())
  await stuck.idle()
  t.same(deleted, [['10.96.0.10:80 by 10.180.0.3:8080']])
})

t.test('a client whose connection IPVS has opened meanwhile keeps it', async (t) => {
  const flows = [flow('10.96.0.10:80'), flow('192.0.2.1:30080')]
  const { stuck, deleted } = tableWith(flows, [`${client} 10.96.0.10:80`])
  stuck.applied(states('IPv4').put(service(web)).take())
  await stuck.idle()
  t.same(deleted, [['192.0.2.1:30080']])
})

t.test('clients of one family are freed while the other family rests', async (t) => {
  const read: IpFamily[] = []
  const nothing = () => undefined
  const stuck = new StuckClients({
    table: () => ({
      delete: (family) => {
        read.push(family)
        return Promise.resolve({ deleted: 0, left: 0 })
      },
    }),
    openInIpvs: () => new Set(),
    // Each reading takes so long that the rest after it is the longest one.
    now: () => 10_000 * read.length,
    log: { debug: nothing, info: nothing, error: nothing, warn: nothing },
  })
  stuck.applied(states('IPv4').put(service(web)).take())
  await until(
    () => 'the first reading',
    () => read.length === 1,
  )
  stuck.applied(
    states('IPv6')
      .put(service({ ...web, clusterIp: 'fd00:96::a' }))
      .take(),
  )
  // The end would cut a rest short, so it comes later.
  t.same(read, ['IPv4', 'IPv6'])
  await stuck.idle()
})

t.test('SCTP clients are freed as TCP clients are, each of their own Service', async (t) => {
  const { stuck, deleted } = tableWith([flow('10.96.0.10:80'), flow('10.96.0.11:90')])
  const cluster = states('IPv4').put(service(web))
  cluster.put(service({ name: 'cell', protocol: 'SCTP', clusterIp: '10.96.0.11', port: 90 }))
  stuck.applied(cluster.take())
  await stuck.idle()
  t.same(deleted, [['10.96.0.10:80'], ['SCTP 10.96.0.11:90']])
})

t.test('clients are freed whose Service comes while a deletion ends', async (t) => {
  for (let turns = 0; turns < 10; turns++) {
    const freed = new Set<string>()
    const nothing = () => undefined
    const cluster = states('IPv4')
    const applyLater = async () => {
      for (let each = 0; each < turns; each++) await Promise.resolve()
      stuck.applied(cluster.put(service({ ...web, name: 'late', clusterIp: '10.96.0.11' })).take())
    }
    const flows = [flow('10.96.0.10:80'), flow('10.96.0.11:80')]
    const stuck = new StuckClients({
      table: () => ({
        delete: (_family, { isStale }) => {
          for (const one of flows.filter(isStale)) freed.add(one.destination)
          if (freed.size === 1) void applyLater()
          return Promise.resolve({ deleted: 1, left: 0 })
        },
      }),
      openInIpvs: () => new Set(),
      now: () => 0,
      log: { debug: nothing, info: nothing, error: nothing, warn: nothing },
    })
    stuck.applied(cluster.put(service(web)).take())
    await delay(1)
    await stuck.idle()
    t.same([...freed], ['10.96.0.10:80', '10.96.0.11:80'], `${turns} turns later`)
  }
})

t.test(
  'the table is read only where a Service that is not UDP got an address, a port or its first endpoint, or lost one',
  async (t) => {
    const { stuck, deleted } = tableWith([flow('10.96.0.10:80'), flow('10.96.0.10:81')])
    const cluster = states('IPv4')
    const apply = async (spec: Parameters<typeof service>[0]) => {
      stuck.applied(cluster.put(service(spec)).take())
      await stuck.idle()
      return deleted.splice(0)
    }
    t.same(await apply(web), [['10.96.0.10:80']])
    t.same(await apply({ ...web, endpoints: 3 }), [], 'one more endpoint')
    t.same(await apply({ ...web, endpoints: 0 }), [['10.96.0.10:80']], 'its last endpoint')
    t.same(await apply({ ...web, endpoints: 1 }), [['10.96.0.10:80']], 'its first endpoint')
    t.same(await apply({ ...web, port: 81 }), [['10.96.0.10:81']], 'only what is new')
    t.same(await apply({ name: 'dns', protocol: 'UDP', clusterIp: '10.96.0.53' }), [])
    stuck.applied(cluster.take(), [
      'default/web:http/TCP',
      'default/dns:http/UDP',
      'default/gone:/TCP',
    ])
    await stuck.idle()
    t.same(deleted, [['10.96.0.10:81']], 'rules that were refused until now')
  },
)

t.test(
  'states that come meanwhile wait together; a failure is told, and ends nothing',
  async (t) => {
    const { stuck, deleted, warnings, fail } = tableWith([])
    const cluster = states('IPv4')
    const names = ['a', 'b', 'c']
    for (const [index, name] of names.entries()) {
      stuck.applied(cluster.put(service({ name, clusterIp: `10.96.1.${index}` })).take())
    }
    await stuck.idle()
    t.equal(deleted.length, 2)
    fail(new Error('EPERM'))
    stuck.applied(cluster.put(service({ name: 'd', clusterIp: '10.96.1.9' })).take())
    await stuck.idle()
    t.match(warnings, [{ family: 'IPv4', error: 'EPERM' }])
    fail()
    stuck.applied(cluster.put(service({ name: 'e', clusterIp: '10.96.1.10' })).take())
    await stuck.idle()
    t.equal(deleted.length, 3)
  },
)
