import t from 'tap'
import { explainPacket } from '../../lib/inspect/explain/explain.js'
import { LiveCheck } from '../../lib/inspect/explain/live.js'
import { placeText } from '../../lib/kernel/place.js'
import { declared, jumps } from '../../lib/modes/ipvs/chains.js'
import { ipvsDifferences } from '../../lib/modes/ipvs/differences.js'
import { ipvsPlanner } from '../../lib/modes/ipvs/plan.js'
import { setNameOf, setNames, setOf } from '../../lib/modes/ipvs/names.js'
import type { KernelView } from '../../lib/modes/ipvs/kernel-view.js'
import {
  serverText,
  type PlannedServer,
  type RealServer,
  type ServerAddress,
} from '../../lib/modes/ipvs/resource.js'
import { parseSaved, type SavedTable } from '../../lib/kernel/iptables.js'
import { service, states, testConfig, testSettings } from '../support/states.js'
import type { IpvsPlan } from '../../lib/modes/ipvs/plan.js'

/** A kernel that has exactly the plan. Tests change it. */
function kernelOf(plan: IpvsPlan) {
  const planned = new Map<string, PlannedServer>()
  const addresses = new Map<string, string>()
  const members = new Map(setNames.map((name) => [name, new Set<string>()]))
  for (const [first] of plan.requests.values()) {
    const resource = first?.resource
    if (resource?.kind === 'server') planned.set(serverText(resource.server), resource)
    else if (resource?.kind === 'address') addresses.set(resource.ip, resource.ip)
    else if (resource) members.get(resource.set)?.add(resource.member)
  }
  const sets = new Map(
    Array.from(members, ([name, list]) => [
      setNameOf(plan.family, name),
      { ...setOf(plan.family, name), members: list },
    ]),
  )
  return { planned, addresses, sets, tables: tablesOf(plan) }
}

function viewOf({ planned, addresses, sets }: ReturnType<typeof kernelOf>): KernelView {
  const servers = new Map(Array.from(planned, ([id, { server }]) => [id, server]))
  const reals = (server: ServerAddress) =>
    Promise.resolve(planned.get(serverText(server))?.reals ?? new Map<string, RealServer>())
  return { servers, reals, addresses, sets }
}

function tablesOf({ chains }: IpvsPlan): SavedTable[] {
  const lines = ['mangle', 'nat', 'filter'].flatMap((table) => {
    const here = [...jumps, ...chains].filter((one) => one.table === table)
    const own = declared.filter(([name]) => name === table).map(([, chain]) => chain)
    const all = new Set([...own, ...here.map(({ chain }) => chain)])
    return [
      `*${table}`,
      ...[...all].map((chain) => `:${chain} - [0:0]`),
      ...here.map(({ chain, rule }) => `-A ${chain} ${rule.text}`),
    ]
  })
  return parseSaved(lines.join('\n'))
}

t.test(
  'a comparison in ipvs mode names missing, changed and extra parts with their Service',
  async (t) => {
    const web = service({ name: 'web', clusterIp: '10.96.0.10', nodePort: 30080, endpoints: 2 })
    const plan = ipvsPlanner(testSettings)(states().put(web).take())
    const kernel = kernelOf(plan)
    const { tables } = kernel
    const compare = async (saved = tables) => {
      const differences = await ipvsDifferences(plan, {
        view: viewOf(kernel),
        tables: saved,
        excluded: [],
      })
      return differences.map(({ place, expected = '', found = '', owner }) =>
        [placeText(place), expected, found, owner].join(' | '),
      )
    }
    t.same(await compare(), [], 'as planned')

    const at = '10.96.0.10:80/TCP'
    const server = kernel.planned.get(at)
    if (!server) throw new Error('no virtual server')
    const [[first = '', real] = []] = server.reals
    if (!real) throw new Error('no real server')
    const reals = new Map(server.reals)
    reals.set(first, { ...real, weight: 7, altered: '-g' })
    reals.set('10.9.9.9:80', { ip: '10.9.9.9', port: 80, weight: 1 })
    // A server that drains needs no repair.
    reals.set('10.9.9.8:80', { ip: '10.9.9.8', port: 80, weight: 0 })
    kernel.planned.set(at, {
      ...server,
      server: { ...server.server, scheduler: 'lc', altered: '-o' },
      reals,
    })
    kernel.addresses.delete('10.96.0.10')
    kernel.sets.get('KUBE-CLUSTER-IP')?.members.add('10.9.9.9,tcp:80')
    const owner = 'default/web:http'
    t.same(await compare(), [
      'ipset KUBE-CLUSTER-IP |  | 10.9.9.9,tcp:80 | ',
      `virtual server ${at} | -A -t 10.96.0.10:80 -s rr | -A -t 10.96.0.10:80 -s lc -o | ${owner}`,
      `virtual server ${at} | -r ${first} -m -w 1 | -r ${first} -g -w 7 | ${owner}`,
      `virtual server ${at} |  | -r 10.9.9.9:80 -m -w 1 | ${owner}`,
      `device kube-ipvs0 | 10.96.0.10 |  | ${owner}`,
    ])

    const spoilt = tables.map((table) => ({
      ...table,
      chains: new Map(
        Array.from(table.chains, ([name, chain]) => [
          name,
          name === 'KUBE-MARK-MASQ' ? { ...chain, rules: [] } : chain,
        ]),
      ),
    }))
    t.match((await compare(spoilt)).at(-1), /^nat KUBE-MARK-MASQ \| -j MARK --or-mark 0x4000 \|/)
  },
)

t.test('a virtual server takes connections with another scheduler, too', async (t) => {
  const web = service({ name: 'web', clusterIp: '10.96.0.10', endpoints: 2 })
  const state = states().put(web).take()
  const plan = ipvsPlanner(testSettings)(state)
  const kernel = kernelOf(plan)
  const { tables } = kernel
  const packet = {
    ...({
      family: 'IPv4',
      protocol: 'TCP',
      source: '192.0.2.9',
      destination: '10.96.0.10',
    } as const),
    ...{ port: 80, inInterface: 'eth0', mark: 0, isDnated: false, isMasqueraded: false },
  }
  const ends = async () => {
    const view = viewOf(kernel)
    const live = new LiveCheck(await ipvsDifferences(plan, { view, tables, excluded: [] }))
    const lacks = (item: Parameters<LiveCheck['lacks']>[0]) => live.lacks(item)
    const ways = explainPacket('ipvs', state, testConfig, packet, lacks)
    return ways.map((way) => `${way.end} ${way.packet.destination}`)
  }
  const planned = await ends()
  t.equal(planned.length, 2)
  const at = '10.96.0.10:80/TCP'
  const there = kernel.planned.get(at)
  if (!there) throw new Error('no virtual server')
  kernel.planned.set(at, { ...there, server: { ...there.server, scheduler: 'lc' } })
  t.same(await ends(), planned)
  kernel.planned.delete(at)
  t.same(await ends(), ['local 10.96.0.10'], 'but a missing one takes none')
})
