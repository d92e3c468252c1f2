import t from 'tap'
import { flowEvents, flowRecord, type FlowEvent } from '../../lib/modes/ebpf/flow-layout.js'
import { familyNumbers, targetId } from '../../lib/modes/ebpf/layout.js'
import { socketPlanner } from '../../lib/modes/ebpf/plan.js'
import { CountedLists } from '../../lib/modes/ebpf/counted-lists.js'
import { mostPerLook, SocketFlows } from '../../lib/modes/ebpf/socket-flows.js'
import { service, states } from '../support/states.js'
import type { SocketFlow } from '../../lib/modes/mode.js'

const cluster = states('IPv4')
  .put(service({ endpoints: 1 }))
  .take()
const plan = socketPlanner({ localhostNodePorts: false })(cluster)
const [part] = plan.parts.values()
const id = targetId(part?.targets[0]?.id ?? '')

interface Written {
  readonly event?: FlowEvent
  readonly of?: number
  readonly family?: 'IPv4' | 'IPv6'
  readonly places?: readonly [client: string, original: string, backend: string]
}

/** A record as programs write it. The bytes that they do not write are not zero. */
function record({ event = 'opened', of = id, family = 'IPv4', places }: Written = {}): Buffer {
  const bytes = Buffer.alloc(flowRecord.bytes, 0xee)
  const [client, original, backend] = places ?? ['0af40005', '0a60000a', '0af40001']
  bytes.writeUInt32LE(of, flowRecord.id)
  bytes.writeUInt32LE(flowEvents[event], flowRecord.event)
  bytes.writeBigUInt64LE(1_499_999_999n, flowRecord.duration)
  bytes.writeBigUInt64LE(5n, flowRecord.toEndpoint)
  bytes.writeBigUInt64LE(2n ** 33n, flowRecord.toClient)
  bytes.write(client, flowRecord.client, 'hex')
  bytes.write(original, flowRecord.original, 'hex')
  bytes.write(backend, flowRecord.backend, 'hex')
  bytes.writeUInt32LE(40_000, flowRecord.clientPort)
  bytes.writeUInt16BE(80, flowRecord.originalPort)
  bytes.writeUInt16BE(8080, flowRecord.backendPort)
  bytes.writeUInt32LE(familyNumbers[family], flowRecord.family)
  bytes.writeUInt32LE(4711, flowRecord.process)
  return bytes
}

function begin() {
  const records: Buffer[] = []
  const told: SocketFlow[] = []
  const sum = { leftOut: 0, lost: 0, calls: 0 }
  const flows = new SocketFlows({
    noted: {
      read: (visit) => {
        const all = records.splice(0)
        for (const bytes of all) visit(bytes, 0, bytes.length)
        return all.length
      },
      lostSoFar: () => sum.lost,
    },
    lists: () => new CountedLists([plan]),
    translated: (connections, leftOut) => {
      told.push(...connections)
      sum.leftOut += leftOut
      sum.calls++
    },
  })
  return { records, told, sum, flows }
}

t.test('each record is a connection, with all that is known of it', (t) => {
  const { records, told, sum, flows } = begin()
  const ip6 = ['a', 'b', 'c'].map((end) => `fd${'0'.repeat(29)}${end}`)
  records.push(
    record(),
    record({ event: 'ended', family: 'IPv6', places: [ip6[0] ?? '', ip6[1] ?? '', ip6[2] ?? ''] }),
    record({ event: 'failed' }),
    record({ event: 'client' }),
    record({ event: 'client', places: ['00000000', '0a60000a', '0af40001'] }),
  )
  flows.look()
  const numbers = { durationMs: 1500, bytesToEndpoint: 5, bytesToClient: 2 ** 33 }
  const name = 'default/web:http'
  const common = { service: name, ...numbers }
  const places = {
    ...{ client: '10.244.0.5:40000', address: '10.96.0.10:80', endpoint: '10.244.0.1:8080' },
  }
  t.same(told, [
    { ...common, event: 'opened', ...places },
    {
      ...{ ...common, event: 'ended', client: '[fd00::a]:40000' },
      ...{ address: '[fd00::b]:80', endpoint: '[fd00::c]:8080' },
    },
    { ...common, event: 'failed', ...places },
    { service: name, event: 'client', process: 4711, ...places },
    { service: name, event: 'client', process: 4711, ...places, client: '' },
  ])
  flows.look()
  t.same(sum, { leftOut: 0, lost: 0, calls: 1 }, 'nothing is told where nothing came')
  t.end()
})

t.test(
  'records without room, beyond the limit of a reading, or of no Service are left out and counted',
  (t) => {
    const { records, told, sum, flows } = begin()
    records.push(record({ of: id + 1 }), Buffer.alloc(flowRecord.bytes))
    while (records.length < mostPerLook + 50) records.push(record())
    sum.lost = 7
    flows.look()
    t.equal(told.length, mostPerLook - 2)
    t.equal(sum.leftOut, 50 + 2 + 7)
    flows.look()
    t.equal(sum.leftOut, 50 + 2 + 7, 'once')
    t.end()
  },
)
