import fc from 'fast-check'
import t from 'tap'
import { FlowMessage } from '../../lib/kernel/flow-message.js'
import { bytesOf, examplesOf, near } from '../support/corpus.js'

/** An attribute of netlink, padded to four bytes. A nest contains attributes. */
function attribute(type: number, ...values: readonly Buffer[]): Buffer {
  const value = Buffer.concat(values)
  const bytes = Buffer.alloc(4 + Math.ceil(value.length / 4) * 4)
  bytes.writeUInt16LE(4 + value.length, 0)
  bytes.writeUInt16LE(type, 2)
  value.copy(bytes, 4)
  return bytes
}
const nest = (type: number, ...inside: readonly Buffer[]) => attribute(type | 0x8000, ...inside)
const u16 = (value: number) => Buffer.from([value >> 8, value & 255])
const u32 = (value: number) => Buffer.from([24, 16, 8, 0].map((bits) => (value >>> bits) & 255))
const u64 = (value: bigint) => {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(value)
  return bytes
}
const ip4 = (...bytes: readonly number[]) => Buffer.from(bytes)
const ip6 = (last: number) =>
  Buffer.concat([Buffer.from([0xfd]), Buffer.alloc(14), Buffer.of(last)])

interface End {
  readonly ip: Buffer
  readonly port: number
}

/** A tuple as the kernel writes it, or in another order with one more attribute. */
function tuple(type: number, from: End, to: End, isUsual = true): Buffer {
  const first = from.ip.length === 4 ? 1 : 3
  const ip = nest(1, attribute(first, from.ip), attribute(first + 1, to.ip))
  const ports = [attribute(2, u16(from.port)), attribute(3, u16(to.port))]
  const number = attribute(1, Buffer.of(6))
  if (isUsual) return nest(type, ip, nest(2, number, ...ports))
  return nest(type, nest(2, attribute(9, u32(1)), ...ports.reverse(), number), ip)
}

const ends4 = {
  client: { ip: ip4(10, 244, 1, 7), port: 40_000 },
  service: { ip: ip4(203, 0, 113, 1), port: 80 },
  endpoint: { ip: ip4(10, 244, 2, 3), port: 8080 },
}
const ends6 = {
  client: { ip: ip6(7), port: 40_000 },
  service: { ip: ip6(1), port: 80 },
  endpoint: { ip: ip6(3), port: 8080 },
}

function message(family: 2 | 10, isUsual = true): Buffer {
  const { client, service, endpoint } = family === 2 ? ends4 : ends6
  const counters = (packets: bigint, bytes: bigint) => [
    attribute(1, u64(packets)),
    attribute(2, u64(bytes)),
  ]
  return Buffer.concat([
    Buffer.of(family, 0, 0, 0),
    tuple(1, client, service, isUsual),
    tuple(2, endpoint, client, isUsual),
    attribute(12, u32(0xfedcba98)),
    nest(4, nest(1, attribute(1, Buffer.of(7)))),
    nest(9, ...counters(3n, 2n ** 40n)),
    nest(10, ...counters(2n, 500n)),
    nest(20, attribute(1, u64(1_700_000_000_000_000_000n))),
  ])
}

const saidBy = (flow: FlowMessage) => {
  const { client, destination, endpoint, destinationPort, protocolName, id, isOpen } = flow
  const { startedAt, bytesToEndpoint, bytesToClient, packetsToEndpoint, packetsToClient } = flow
  return {
    ...{ client, destination, endpoint, destinationPort, protocolName, id, isOpen, startedAt },
    ...{ bytesToEndpoint, bytesToClient, packetsToEndpoint, packetsToClient },
  }
}

const common = {
  ...{ destinationPort: 80, protocolName: 'TCP', id: 0xfedcba98, isOpen: false },
  ...{ startedAt: 1_700_000_000_000, bytesToEndpoint: 2 ** 40, bytesToClient: 500 },
  ...{ packetsToEndpoint: 3, packetsToClient: 2 },
}

t.test('a message says the same in whatever order its attributes come, and wherever it is', (t) => {
  const flow = new FlowMessage()
  const said = {
    2: { client: '10.244.1.7:40000', destination: '203.0.113.1:80', endpoint: '10.244.2.3:8080' },
    10: { client: '[fd00::7]:40000', destination: '[fd00::1]:80', endpoint: '[fd00::3]:8080' },
  }
  for (const family of [2, 10] as const) {
    for (const isUsual of [true, false]) {
      for (const before of [0, 1, 2, 4, 7]) {
        const bytes = message(family, isUsual)
        const memory = Buffer.concat([Buffer.alloc(before), bytes, Buffer.alloc(9, 0xff)])
        t.ok(flow.read(memory, before, before + bytes.length))
        t.same(saidBy(flow), { ...said[family], ...common }, `${family} ${isUsual} ${before}`)
      }
    }
  }
  t.end()
})

t.test('two places have different keys, and each place always has the same one', (t) => {
  const [one, other] = [new FlowMessage(), new FlowMessage()]
  one.read(message(2), 0, message(2).length)
  other.read(message(2, false), 0, message(2, false).length)
  t.equal(one.destinationKey, other.destinationKey)
  t.equal(one.endpointKey, other.endpointKey)
  other.read(message(10), 0, message(10).length)
  t.not(one.endpointKey, other.endpointKey)
  t.end()
})

t.test('a cut message gives only what it has, and nothing of the message before', (t) => {
  const flow = new FlowMessage()
  for (const family of [2, 10] as const) {
    const whole = message(family)
    const tuples = whole.indexOf(attribute(12, u32(0xfedcba98)))
    for (let end = 0; end < whole.length; end++) {
      flow.read(whole, 0, whole.length)
      const isRead = flow.read(whole, 0, end)
      t.equal(isRead, end >= tuples, `${family}: ${end} bytes`)
      if (end < whole.length - 16) t.equal(flow.startedAt, 0)
    }
  }
  t.end()
})

t.test('a message with wrong lengths makes no error', (t) => {
  const flow = new FlowMessage()
  for (const length of [0, 3, 0xffff]) {
    for (let at = 4; at < 112; at += 4) {
      const bytes = message(2)
      bytes.writeUInt16LE(length, at)
      t.doesNotThrow(() => flow.read(bytes, 0, bytes.length), `${length} at ${at}`)
    }
  }
  t.end()
})

t.test('any bytes are a flow or none, and nothing beyond them is read', async (t) => {
  const flow = new FlowMessage()
  fc.assert(
    fc.property(fc.oneof(fc.uint8Array({ maxLength: 200 }), near('flow-message')), (given) => {
      const bytes = Buffer.from(given)
      const isFlow = flow.read(bytes, 0, bytes.length)
      // The bytes after the message in a larger buffer change nothing.
      const larger = Buffer.concat([bytes, Buffer.alloc(64, 0xff)])
      return new FlowMessage().read(larger, 0, bytes.length) === isFlow
    }),
    { numRuns: 1000, examples: examplesOf(bytesOf('flow-message')) },
  )
  t.ok(bytesOf('flow-message').some((bytes) => flow.read(bytes, 0, bytes.length)))
})
