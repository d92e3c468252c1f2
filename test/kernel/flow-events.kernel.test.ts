import t, { type Test } from 'tap'
import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { FlowEvents } from '../../lib/kernel/flow-events.js'
import { listTrackedFlows } from '../../lib/kernel/conntrack.js'
import { programSkip } from '../support/netns.js'
import { enterPrivateNetns } from '../support/private-netns.js'

const skip = enterPrivateNetns() ?? programSkip('nft')

const targets = [
  { service: '10.96.0.1', other: '192.0.2.1', endpoint: '192.0.2.1:5300' },
  { service: 'fd00:10:96::1', other: 'fd00::1', endpoint: '[fd00::1]:5300' },
] as const

const rules = `table inet test { chain output {
  type nat hook output priority -100;
  ip daddr 10.96.0.1 udp dport 53 dnat ip to 192.0.2.1:5300
  ip6 daddr fd00:10:96::1 udp dport 53 dnat ip6 to [fd00::1]:5300
}
}`

function prepareNode(): void {
  const ip = (...args: string[]) => execFileSync('ip', args)
  ip('link', 'set', 'lo', 'up')
  ip('address', 'add', '192.0.2.1/32', 'dev', 'lo')
  ip('address', 'add', 'fd00::1/128', 'dev', 'lo', 'nodad')
  ip('route', 'add', '10.96.0.0/16', 'dev', 'lo', 'src', '192.0.2.1')
  ip('route', 'add', 'fd00:10:96::/48', 'dev', 'lo', 'src', 'fd00::1')
  execFileSync('nft', ['-f', '-'], { input: rules })
  const settings = ['acct=1', 'timestamp=1', 'events=1', 'udp_timeout=0']
  execFileSync('sysctl', ['-w', ...settings.map((each) => `net.netfilter.nf_conntrack_${each}`)])
}

/** Sends datagrams, each from another port, and returns the ports. */
async function send(count: number, to: string): Promise<readonly number[]> {
  const ports: number[] = []
  for (let sent = 0; sent < count; sent++) {
    const socket = createSocket(to.includes(':') ? 'udp6' : 'udp4')
    socket.bind(0)
    await once(socket, 'listening')
    await new Promise((resolve) => socket.send('x', 53, to, resolve))
    ports.push(socket.address().port)
    socket.close()
  }
  return ports
}

/** Keeps what is reported of flows. */
class Told {
  readonly opened: string[] = []
  readonly ended: string[] = []

  readonly reader = {
    opened: (flow: { client: string; endpoint: string }) =>
      this.opened.push(`${flow.client} ${flow.endpoint}`),
    ended: (flow: { client: string; endpoint: string; packetsToEndpoint: number }) =>
      this.ended.push(`${flow.client} ${flow.endpoint} ${flow.packetsToEndpoint}`),
  }
}

async function everyFlowIsTold(t: Test, ringBytes: number, burst: number): Promise<void> {
  const receiveBufferBytes = 1 << 20
  const events = await FlowEvents.open({ receiveBufferBytes, ringBytes, onlyTranslated: true })
  t.teardown(() => events.close())
  t.equal(events.hasRing, ringBytes > 0)
  for (const { service, other, endpoint } of targets) {
    const told = new Told()
    const clients: string[] = []
    for (let round = 0; round < 3; round++) {
      await send(5, other)
      const ports = await send(burst, service)
      const host = endpoint.slice(0, endpoint.lastIndexOf(':'))
      clients.push(...ports.map((port) => `${host}:${port} ${endpoint}`))
      t.ok(events.read(told.reader).isWhole)
    }
    t.same(told.opened.toSorted(), clients.toSorted(), 'each that was translated, once')
    // The kernel removes entries that are over when somebody reads its table.
    while (told.ended.length < clients.length) {
      await listTrackedFlows(service.includes(':') ? 'IPv6' : 'IPv4')
      events.read(told.reader)
    }
    const ends = clients.map((client) => `${client} 1`)
    t.same(told.ended.toSorted(), ends.toSorted(), 'and its end, with its packets')
  }
}

if (skip === false) prepareNode()

t.test('connections come by a ring, also many times around it', { skip }, (t) =>
  everyFlowIsTold(t, 1 << 16, 150),
)

t.test('events without room in the ring come to the socket', { skip }, (t) =>
  everyFlowIsTold(t, 1 << 16, 500),
)

t.test('if the kernel refuses a ring, all events come to the socket', { skip }, (t) =>
  everyFlowIsTold(t, 0, 150),
)
