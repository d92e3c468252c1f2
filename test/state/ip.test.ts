import t from 'tap'
import fc from 'fast-check'
import { isIP } from 'node:net'
import {
  bitsOf,
  cidrContains,
  formatIp,
  hostPort,
  isLinkLocal,
  isLoopback,
  parseCidr,
  parseIp,
  parseObjectCidr,
  parseObjectIp,
} from '../../lib/state/ip.js'
import { examplesOf, textsOf } from '../support/corpus.js'

t.test('addresses are read as Kubernetes reads them, and printed canonically', async (t) => {
  for (const [text, canonical] of [
    ['10.0.0.1', '10.0.0.1'],
    ['255.255.255.255', '255.255.255.255'],
    ['FD00:0:0:0:0:0:0:1', 'fd00::1'],
    ['::', '::'],
    ['::1', '::1'],
    ['1:0:0:2:0:0:0:3', '1:0:0:2::3'],
    ['1:0:2:0:3:0:4:0', '1:0:2:0:3:0:4:0'],
    ['::ffff:10.0.0.1', '10.0.0.1'],
    ['::ffff:a00:1', '10.0.0.1'],
    ['64:ff9b::1.2.3.4', '64:ff9b::102:304'],
  ] as const) {
    t.equal(parseIp(text)?.text, canonical, text)
  }
})

t.test('in objects leading zeros are of decimal numbers, as kube-proxy reads them', async (t) => {
  t.equal(parseObjectIp('010.096.000.010')?.text, '10.96.0.10')
  t.equal(parseObjectIp('10.0.0.08')?.text, '10.0.0.8')
  t.equal(parseObjectIp('2001:db8::1')?.text, '2001:db8::1')
  t.equal(parseObjectCidr('010.000.0.0/8')?.text, '10.0.0.0/8')
  for (const text of ['0256.1.1.1', '0x1.2.3.4', '1.2.3', '010.0.0.', '::ffff:010.0.0.1']) {
    t.equal(parseObjectIp(text), undefined, text)
  }
  t.equal(parseObjectCidr('10.1.0.0/08')?.text, '10.0.0.0/8')
  t.equal(parseObjectCidr('fd00::1/064')?.text, 'fd00::/64')
  t.equal(parseObjectCidr('10.0.0.0/00')?.text, '0.0.0.0/0')
})

t.test('wrong addresses are refused: leading zeros, zones, short forms, blanks', async (t) => {
  const wrong = [
    '',
    '1',
    '1.2.3',
    '1.2.3.4.5',
    '010.0.0.1',
    '1.2.3.04',
    '256.1.1.1',
    '1.2.3.',
    '.1.2.3',
    ' 1.2.3.4',
    '1.2.3.4 ',
    '1.2.3.4\n',
    'fe80::1%eth0',
    ':::',
    '1::2::3',
    '1:2:3:4:5:6:7',
    '1:2:3:4:5:6:7:8:9',
    '1:2:3:4:5:6:7::8:9',
    '12345::',
    'g::',
    '::1.2.3',
    '1.2.3.4::',
    '0x1.2.3.4',
    '::ffff:010.0.0.1',
  ]
  for (const text of wrong) t.equal(parseIp(text), undefined, JSON.stringify(text))
})

t.test('a text is an address exactly if node:net accepts it and it has no zone', async (t) => {
  const alphabet = fc.constantFrom(...'0123456789abcdef:.'.split(''))
  fc.assert(
    fc.property(
      fc.oneof(fc.ipV4(), fc.ipV6(), fc.string({ unit: alphabet, maxLength: 20 })),
      (text) => {
        const known = isIP(text) !== 0
        return (parseIp(text) !== undefined) === known
      },
    ),
    { numRuns: 3000, examples: examplesOf(textsOf('ip')) },
  )
  t.pass('held for 3000 texts')
})

t.test('every address of both IP families survives formatting and parsing', async (t) => {
  fc.assert(
    fc.property(fc.bigInt(0n, 2n ** 128n - 1n), (value) => {
      const text = formatIp('IPv6', value)
      const back = parseIp(text)
      return value >> 32n === 0xffffn
        ? back?.family === 'IPv4'
        : back?.value === value && back.text === text
    }),
  )
  fc.assert(
    fc.property(
      fc.bigInt(0n, 2n ** 32n - 1n),
      (value) => parseIp(formatIp('IPv4', value))?.value === value,
    ),
  )
  t.pass('held')
})

t.test('CIDRs lose their host bits, keep their family, and contain what they should', async (t) => {
  t.equal(parseCidr('10.1.2.3/8')?.text, '10.0.0.0/8')
  t.equal(parseCidr('fd00::1/64')?.text, 'fd00::/64')
  t.equal(parseCidr('::ffff:10.1.2.3/112')?.text, '10.1.0.0/16')
  t.equal(parseCidr('::ffff:a01:203/96')?.text, '0.0.0.0/0')
  for (const wrong of [
    '10.0.0.0',
    '10.0.0.0/33',
    '10.0.0.0/08',
    'fd00::/129',
    '10.0.0.0/',
    '::ffff:10.0.0.0/95',
    '::ffff:10.0.0.0/129',
    '10.0.0.0/-1',
    '10.0.0.0/8 ',
  ]) {
    t.equal(parseCidr(wrong), undefined, wrong)
  }
  const inside = (cidr: string, ip: string) => cidrContains(parseCidr(cidr)!, parseIp(ip)!)
  t.ok(inside('10.0.0.0/8', '10.255.255.255'))
  t.notOk(inside('10.0.0.0/8', '11.0.0.0'))
  t.notOk(inside('10.0.0.0/8', 'fd00::1'))
  t.ok(inside('0.0.0.0/0', '1.2.3.4'))
  t.ok(inside('fd00::/64', 'fd00::ffff'))
  t.notOk(inside('fd00::/64', 'fd00:0:0:1::'))
  t.equal(bitsOf('IPv6'), 128)
})

t.test('the longest prefix is a single address, and a longer one is refused', async (t) => {
  t.match(parseCidr('10.0.0.1/32'), { text: '10.0.0.1/32', prefix: 32 })
  t.match(parseCidr('fd00::1/128'), { text: 'fd00::1/128', prefix: 128 })
  t.equal(parseCidr('10.0.0.1/33'), undefined)
  t.equal(parseCidr('fd00::1/129'), undefined)
})

t.test('loopback and link-local addresses are recognised', async (t) => {
  t.ok(isLoopback(parseIp('127.8.9.1')!))
  t.ok(isLoopback(parseIp('::1')!))
  t.notOk(isLoopback(parseIp('128.0.0.1')!))
  t.ok(isLinkLocal(parseIp('169.254.1.1')!))
  t.ok(isLinkLocal(parseIp('fe80::1')!))
  t.notOk(isLinkLocal(parseIp('fec0::1')!))
  t.equal(hostPort('fd00::1', 80), '[fd00::1]:80')
  t.equal(hostPort('10.0.0.1', 80), '10.0.0.1:80')
})
