import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { ObstacleWatch } from '../../lib/daemon/obstacle-watch.js'
import { Sysctls } from '../../lib/kernel/sysctl.js'
import type { ModeName } from '../../lib/config/config.js'
import type { StateUpdate } from '../../lib/state/tracker.js'
import { service, states } from '../support/states.js'

/** A watch over settings that the test writes. */
function watched(t: Test, mode: ModeName = 'nftables') {
  const root = t.testdir({})
  const lines: string[] = []
  const shown: (readonly string[])[] = []
  const add = (level: string) => (_: object, text: string) => void lines.push(`${level} ${text}`)
  const log = { debug: add('debug'), info: add('info'), warn: add('warn'), error: add('error') }
  const sysctls = new Sysctls(root)
  const watch = new ObstacleWatch({ mode, log, sysctls, changed: (texts) => shown.push(texts) })
  const look = (values: Readonly<Record<string, number>>) => {
    for (const [name, value] of Object.entries(values)) {
      const file = join(root, 'proc/sys/net', name)
      mkdirSync(dirname(file), { recursive: true })
      writeFileSync(file, `${value}\n`)
    }
    watch.look()
    return lines.splice(0)
  }
  const serve = (...services: ReturnType<typeof service>[]) => {
    const cluster = states()
    for (const each of services) cluster.put(each)
    watch.started({ states: [cluster.take()] } as unknown as StateUpdate)
  }
  return { look, serve, shown }
}

const table = (count: number) => ({
  'netfilter/nf_conntrack_count': count,
  'netfilter/nf_conntrack_max': 1000,
})

t.test('a full connection table is logged when it begins and when it is over', (t) => {
  const { look, shown } = watched(t, 'userspace')
  t.same(look(table(980)), [])
  t.match(look(table(1000)), [/^warn the connection table is full \(1000 of 1000.*raise conntrack/])
  t.same(look(table(1000)), [])
  t.same(look(table(950)), [], 'it is full again soon')
  t.same(look(table(995)), [])
  t.same(look(table(800)), ['info the connection table has room again'])
  t.match(shown, [[/1000 of 1000/], []], 'the page has what is in the way now')
  t.match(look(table(990)), [/^warn/])
  t.end()
})

t.test('forwarding that is off is logged where Services need it', (t) => {
  const off = { 'ipv4/ip_forward': 0, 'ipv6/conf/all/forwarding': 0 }
  const { look, serve, shown } = watched(t)
  t.same(look(off), [], 'no Service is known yet')
  serve(service({ endpoints: 0 }))
  t.same(look(off), [], 'no packet goes to another address')
  serve(service({ endpoints: 1 }))
  t.match(look(off), [/^warn net\.ipv4\.ip_forward is 0, .*set it to 1$/], 'IPv6 has no Services')
  t.match(look({ ...off, ...table(1000) }), [/^warn the connection table/])
  t.same(look(table(0)), ['info the connection table has room again'])
  t.same(look({ 'ipv4/ip_forward': 1 }), ['info this node passes IPv4 packets of others on again'])
  t.same(
    shown.map(({ length }) => length),
    [1, 2, 1, 0],
  )
  const carried = watched(t, 'userspace')
  carried.serve(service({ endpoints: 1 }))
  t.same(carried.look(off), [], 'the proxy itself connects to endpoints')
  t.end()
})
