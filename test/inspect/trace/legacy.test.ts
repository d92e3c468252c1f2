import t from 'tap'
import { LegacyRules, packetHeader } from '../../../lib/inspect/trace/legacy-rules.js'
import { parseIpvsConnections } from '../../../lib/kernel/ipvs/connections.js'
import { parseSaved, type Iptables } from '../../../lib/kernel/iptables.js'

/** An IPv4 packet from 10.0.0.1:1000 with this identification. */
function packet(number: number, destination: readonly number[], port: number): Buffer {
  const bytes = Buffer.alloc(40)
  bytes[0] = 0x45
  bytes.writeUInt16BE(number, 4)
  bytes[9] = 6
  bytes.set([10, 0, 0, 1, ...destination], 12)
  bytes.writeUInt16BE(1000, 20)
  bytes.writeUInt16BE(port, 22)
  return bytes
}

t.test('packet headers of both IP families are read, and other bytes are ignored', async (t) => {
  const header = packetHeader(packet(7, [10, 96, 0, 10], 80))
  t.match(header, { source: '10.0.0.1', sourcePort: 1000, destination: '10.96.0.10' })
  t.equal(header?.destinationPort, 80)
  const six = Buffer.alloc(60)
  six[0] = 0x60
  six[6] = 17
  six[8] = 0xfd
  six[24] = 0xfd
  six[39] = 9
  t.match(packetHeader(six), { source: 'fd00::', destination: 'fd00::9' })
  for (const odd of [
    Buffer.alloc(0),
    Buffer.alloc(40),
    packet(7, [1, 2, 3, 4], 80).subarray(0, 22),
  ]) {
    t.equal(packetHeader(odd), undefined)
  }
})

const saved = `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "mine: -j DROP" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -j DNAT --to-destination 10.0.0.2:8080
COMMIT
*raw
:PREROUTING DROP [0:0]
-A PREROUTING -d 10.96.0.10/32 -m comment --comment trace-1 -j TRACE
COMMIT
`

t.test('rules are found by their number, for packets that open a connection', async (t) => {
  let text = saved
  const iptables = { save: async () => parseSaved(text) } as unknown as Iptables
  const rules = new LegacyRules(await iptables.save(), 'IPv4')
  const tell = (prefix: string, number = 7) =>
    rules.events(
      {
        prefix: `TRACE: ${prefix} `,
        inInterface: 'cbr0',
        outInterface: '',
        bytes: packet(number, [10, 96, 0, 10], 80),
      },
      'trace-1',
    )
  t.same(tell('raw:PREROUTING:rule:1'), [], 'the mark is no part of the story')
  t.same(tell('raw:PREROUTING:policy:2'), [], 'nobody knows yet what it opens')
  t.match(tell('nat:PREROUTING:rule:1'), [
    { kind: 'packet', table: 'ip raw', packet: { inInterface: 'cbr0' } },
    { kind: 'end', verdict: 'drop' },
    { kind: 'packet', table: 'ip nat' },
    { kind: 'rule', rule: /mine/, verdict: 'jump KUBE-SERVICES' },
  ])
  t.match(tell('nat:KUBE-SERVICES:rule:1'), [
    { kind: 'packet' },
    { kind: 'rule', rule: /-j DNAT --to-destination 10\.0\.0\.2:8080/, verdict: 'continue' },
  ])
  t.same(tell('raw:PREROUTING:policy:2', 8), [], 'another packet waits for itself')
  t.same(tell('no trace at all'), [])
  await rules.check(iptables)
  text = saved.replace('8080', '8081')
  await t.rejects(rules.check(iptables), /nat KUBE-SERVICES has changed/)
})

t.test('connections of IPVS are read, in both IP families', async (t) => {
  const table = `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0AF4010A 9C41 0A60000A 0050 0AF40115 1F90 ESTABLISHED     899
UDP fd00:0010:0244:0001:0000:0000:0000:0010 0007 fd00:0010:0096:0000:0000:0000:0000:000a 0035 fd00:0010:0244:0001:0000:0000:0000:0021 0035 UDP             299
`
  t.same(parseIpvsConnections(table), [
    {
      protocol: 'TCP',
      client: '10.244.1.10:40001',
      virtual: '10.96.0.10:80',
      real: '10.244.1.21:8080',
      state: 'ESTABLISHED',
    },
    {
      protocol: 'UDP',
      client: '[fd00:10:244:1::10]:7',
      virtual: '[fd00:10:96::a]:53',
      real: '[fd00:10:244:1::21]:53',
      state: 'UDP',
    },
  ])
  t.same(parseIpvsConnections('garbage\n\nTCP zz 1 2'), [])
})
