import t from 'tap'
import {
  familyNumbers,
  protocols,
  statistics,
  statisticsKey,
  targetId,
  udpSocket,
} from '../../lib/modes/ebpf/layout.js'
import { CountedLists } from '../../lib/modes/ebpf/counted-lists.js'
import { socketPlanner } from '../../lib/modes/ebpf/plan.js'
import { Statistics } from '../../lib/modes/ebpf/statistics.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { service, states } from '../support/states.js'

const silent = () => undefined

t.test('a UDP socket that closes last takes the numbers of its Service with it', async (t) => {
  const cluster = states('IPv4').put(service({ name: 'dns', protocol: 'UDP' }))
  const plan = socketPlanner({ localhostNodePorts: false })(cluster.take())
  const [part] = plan.parts.values()
  const id = targetId(part?.targets[0]?.id ?? '')
  // An endpoint that has left, and the socket of a client that is still open.
  const key = Buffer.alloc(statisticsKey.bytes)
  key.writeUInt32LE(id, statisticsKey.id)
  key.writeUInt8(protocols.UDP, statisticsKey.protocol)
  key.writeUInt8(familyNumbers.IPv4, statisticsKey.family)
  const numbers = Buffer.alloc(statistics.bytes)
  numbers.writeUInt32LE(1, statistics.opened)
  const socket = Buffer.alloc(udpSocket.bytes)
  socket.writeUInt32LE(id, udpSocket.id)
  const metrics = new Metrics({ mode: 'ebpf', process: false })
  const maps = { statistics: mapOf(key, numbers), udpSockets: mapOf(key, socket) }
  const read = new Statistics({
    maps: () => maps,
    lists: () => new CountedLists([plan]),
    meter: metrics,
    log: { debug: silent, info: silent, warn: silent, error: silent },
  })
  const open = async () => {
    read.read([plan])
    const all = await metrics.readSeries(['service_active_connections'])
    return all.map(({ label, value }) => `${label('service')} ${value}`)
  }
  const [name = ''] = [...plan.parts.keys()].map((each) => each.slice(0, each.lastIndexOf('/')))
  t.same(await open(), [`${name} 1`])
  t.same(await open(), [`${name} 1`], 'nothing comes any more')
  t.equal([...maps.statistics.entries()].length, 0, 'its endpoint is forgotten')
  maps.udpSockets.delete(key)
  t.same(await open(), [])
})

function mapOf(key: Buffer, value: Buffer) {
  const entries = new Map<Uint8Array, readonly [Buffer, Buffer]>([[key, [key, value]]])
  return {
    entries: () => [...entries.values()],
    delete: (gone: Uint8Array) => entries.delete(gone),
  }
}
