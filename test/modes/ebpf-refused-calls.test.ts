import t from 'tap'
import {
  familyNumbers,
  keptRefusals,
  protocols,
  refusal,
  targetId,
} from '../../lib/modes/ebpf/layout.js'
import { socketPlanner } from '../../lib/modes/ebpf/plan.js'
import { CountedLists } from '../../lib/modes/ebpf/counted-lists.js'
import { RefusedCalls } from '../../lib/modes/ebpf/refused-calls.js'
import { service, states } from '../support/states.js'
import type { RefusedCall } from '../../lib/modes/mode.js'

const cluster = states('IPv4')
  .put(service({ name: 'empty', endpoints: 0 }))
  .take()
const plan = socketPlanner({ localhostNodePorts: false })(cluster)
const [part] = plan.parts.values()
const id = targetId(part?.targets[0]?.id ?? '')

/** The map of refused calls, with entries as programs write them. */
class Ring {
  readonly entries = new Map<number, Buffer>()
  number = 0

  lookup(key: Uint8Array): Buffer | undefined {
    const at = Buffer.from(key).readUInt32LE(0)
    return at === 0 ? this.#entry(this.number, '0a60000b', 'IPv4') : this.entries.get(at)
  }

  refuse(address = '0a60000b', family: 'IPv4' | 'IPv6' = 'IPv4'): void {
    const at = 1 + (this.number++ % keptRefusals)
    this.entries.set(at, this.#entry(this.number, address, family))
  }

  #entry(number: number, address: string, family: 'IPv4' | 'IPv6'): Buffer {
    const bytes = Buffer.alloc(refusal.bytes, 0xee)
    bytes.writeBigUInt64LE(BigInt(number), refusal.number)
    bytes.writeUInt32LE(id, refusal.id)
    bytes.writeUInt32LE(number, refusal.process)
    bytes.write(address, refusal.address, 'hex')
    bytes.writeUInt16BE(80, refusal.port)
    bytes.writeUInt8(protocols.TCP, refusal.protocol)
    bytes.writeUInt8(familyNumbers[family], refusal.family)
    return bytes
  }
}

function begin(ring: Ring) {
  const told: RefusedCall[] = []
  const sum = { leftOut: 0 }
  const refused = (calls: readonly RefusedCall[], leftOut: number) => {
    told.push(...calls)
    sum.leftOut += leftOut
  }
  const calls = new RefusedCalls({ map: ring, lists: () => new CountedLists([plan]), refused })
  return { calls, told, sum }
}

t.test('each refused call is told once, with the address that it asked for', (t) => {
  const ring = new Ring()
  ring.refuse()
  const { calls, told, sum } = begin(ring)
  calls.look()
  t.same(told, [], 'not what was refused before')
  ring.refuse()
  ring.refuse('00000000000000000000ffff0a60000b', 'IPv6')
  ring.refuse('fd000096000000000000000000000001', 'IPv6')
  calls.look()
  calls.look()
  const common = { service: 'default/empty:http', protocol: 'TCP' }
  t.same(told, [
    { ...common, address: '10.96.0.11:80', process: 2 },
    { ...common, address: '10.96.0.11:80', process: 3 },
    { ...common, address: '[fd00:96::1]:80', process: 4 },
  ])
  t.equal(sum.leftOut, 0)
  t.end()
})

t.test(
  'records that are overwritten, half written or of no Service are left out and counted',
  (t) => {
    const ring = new Ring()
    const { calls, told, sum } = begin(ring)
    for (let made = 0; made < 3 * keptRefusals; made++) ring.refuse()
    ring.entries.get(7)?.writeBigUInt64LE(0n, refusal.number)
    ring.entries.get(8)?.writeUInt32LE(id + 1, refusal.id)
    calls.look()
    t.equal(told.length, keptRefusals - 2)
    t.equal(told.length + sum.leftOut, 3 * keptRefusals)
    t.end()
  },
)
