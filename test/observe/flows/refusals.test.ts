import fc from 'fast-check'
import t from 'tap'
import { KernelError } from '../../../lib/errors.js'
import { packetHeader } from '../../../lib/inspect/trace/legacy-rules.js'
import { Attempts, refusalIn, Refusals } from '../../../lib/observe/flows/refusals.js'
import { bytesOf, examplesOf, near } from '../../support/corpus.js'

/** The header of a packet as a rule logs it: IPv4 with so many bytes of options, or IPv6. */
function packet(family: 'IPv4' | 'IPv6', protocol: number, optionBytes = 0): Buffer {
  const head = family === 'IPv4' ? 20 + optionBytes : 40
  const bytes = Buffer.alloc(head + 8)
  if (family === 'IPv4') {
    bytes[0] = 0x40 | (head / 4)
    bytes[9] = protocol
    bytes.set([10, 244, 1, 7], 12)
    bytes.set([10, 96, 0, 11], 16)
  } else {
    bytes[0] = 0x60
    bytes[6] = protocol
    bytes.set([0xfd, 7], 8)
    bytes.set([0xfd, 11], 24)
  }
  bytes.writeUInt16BE(40_000, head)
  bytes.writeUInt16BE(80, head + 2)
  bytes.writeUInt32BE(123_456, head + 4)
  return bytes
}

t.test('a refused packet tells who asked for what, and why it was dropped', (t) => {
  const plain = { client: '10.244.1.7:40000', destination: '10.96.0.11:80', sequence: 123_456 }
  t.match(refusalIn(packet('IPv4', 6), ''), { ...plain, family: 'IPv4', protocol: 6, reason: '' })
  t.match(refusalIn(packet('IPv4', 6, 12), 'no local endpoint'), {
    ...{ ...plain, destinationPort: 80, destinationKey: 0x0a60000b },
    reason: 'no local endpoint',
  })
  t.match(refusalIn(packet('IPv4', 17), ''), { protocol: 17, sequence: 0 })
  t.match(refusalIn(packet('IPv6', 6), ''), {
    ...{ family: 'IPv6', client: '[fd07::]:40000', destination: '[fd0b::]:80' },
  })
  t.end()
})

t.test('what is cut short has no ports, or no number, and is never read beyond its end', (t) => {
  const whole = packet('IPv4', 6)
  for (let length = 0; length < 24; length++) {
    t.equal(refusalIn(whole.subarray(0, length), ''), undefined, `${length} bytes`)
  }
  t.match(refusalIn(whole.subarray(0, 27), ''), { destinationPort: 80, sequence: 0 })
  t.equal(refusalIn(packet('IPv6', 6).subarray(0, 43), ''), undefined)
  t.equal(refusalIn(Buffer.alloc(60, 0x30), ''), undefined, 'no version of IP')
  t.end()
})

t.test('any bytes are a packet with whole addresses, or none', (t) => {
  const place = /^(\d+\.\d+\.\d+\.\d+|\[[\da-f:.]+\]):\d+$/
  const bytes = fc.oneof(fc.uint8Array({ maxLength: 80 }), near('packet'))
  fc.assert(
    fc.property(bytes, (given) => {
      const refusal = refusalIn(Buffer.from(given), '')
      const header = packetHeader(Buffer.from(given))
      const addresses = refusal ? [refusal.client, refusal.destination] : []
      if (!addresses.every((address) => place.test(address))) throw new Error(addresses.join())
      if (header && /undefined/.test(header.id + header.destination)) throw new Error(header.id)
    }),
    { numRuns: 2000, examples: examplesOf<Uint8Array>(bytesOf('packet')) },
  )
  t.end()
})

t.test('a packet that is sent again is the same attempt, as long as it goes on', (t) => {
  let now = 0
  const attempts = new Attempts(() => now)
  t.ok(attempts.add('a'))
  for (; now < 600_000; now += 60_000) t.notOk(attempts.add('a'), `after ${now / 1000} s`)
  now += 200_000
  attempts.add('b')
  now += 200_000
  t.ok(attempts.add('a'), 'and forgotten afterwards')
  t.end()
})

t.test('a flood of attempts takes a bounded memory, and is counted', (t) => {
  const attempts = new Attempts(() => 0)
  let counted = 0
  for (let index = 0; index < 100_000; index++) if (attempts.add(String(index))) counted++
  t.equal(counted, 100_000)
  t.ok(attempts.add('0'), 'the oldest are forgotten')
  t.notOk(attempts.add('99999'))
  t.end()
})

t.test(
  'the group of the old process is waited for in a take-over, and reported if it lasts',
  (t) => {
    let now = 0
    let failure: KernelError | undefined = new KernelError('denied', 'group 10249: EPERM')
    const open = () => {
      if (failure) throw failure
      return { read: () => [], takeOverruns: () => 7, close: () => undefined }
    }
    const heir = new Refusals(10_249, { open, now: () => now })
    const overruns = () => heir.read(() => undefined).overruns
    heir.open()
    now += 59_000
    heir.open()
    t.equal(overruns(), 0, 'it does not listen yet')
    now += 1000
    t.throws(() => heir.open(), failure)
    failure = undefined
    heir.open()
    t.equal(overruns(), 7, 'it listens')

    failure = new KernelError('unsupported', 'no nfnetlink_log')
    t.throws(
      () => new Refusals(1, { open, now: () => now }).open(),
      failure,
      'waiting helps nothing',
    )
    t.end()
  },
)
