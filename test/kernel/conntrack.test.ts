import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { Conntrack, listTrackedFlows, type ServiceFlow } from '../../lib/kernel/conntrack.js'
import { addressBytes, addressText } from '../../lib/kernel/addresses.js'
import type { SocketAddress } from '../../lib/kernel/sockets/socket-address.js'
import { hostPort, type IpFamily } from '../../lib/state/ip.js'
import { staleFlowTest } from '../../lib/sync/stale-flows.js'
import { programSkip } from '../support/netns.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { service, states } from '../support/states.js'

const reason = enterPrivateNetns() ?? (programSkip('nft') || undefined)
const udp = { protocol: 'UDP' } as const
const needsNft = reason === undefined ? {} : { skip: reason }

t.test('addresses turn into bytes and back', (t) => {
  for (const text of ['10.0.255.1', '0.0.0.0']) {
    t.equal(addressText('IPv4', Buffer.from(addressBytes(text)!)), text)
  }
  for (const text of ['fd00::1', '::', '2001:db8::ffff:0:1']) {
    t.equal(addressText('IPv6', Buffer.from(addressBytes(text)!)), text)
  }
  t.equal(addressBytes('10.0.0'), undefined)
  t.end()
})

/** Makes a flow: a client sends one datagram from this port. */
async function send(from: number, ip: string, port: number): Promise<void> {
  const socket = createSocket(ip.includes(':') ? 'udp6' : 'udp4')
  socket.bind(from)
  await once(socket, 'listening')
  await new Promise((resolve) => socket.send('x', port, ip, resolve))
  socket.close()
}

/** Puts an entry into the kernel's table, as a packet would. */
function enter(entry: string): void {
  execFileSync('conntrack', entry.split(/\s+/), { stdio: 'ignore' })
}

function prepareNode(): void {
  const run = (...args: string[]) => execFileSync('ip', args)
  run('link', 'set', 'lo', 'up')
  // A flow without an answer ends after 30 s otherwise, before a busy machine looks at it.
  execFileSync('sysctl', ['-qw', 'net.netfilter.nf_conntrack_udp_timeout=600'])
  for (const last of [1, 2]) run('address', 'add', `10.180.0.${last}/32`, 'dev', 'lo')
  run('address', 'add', '192.0.2.1/32', 'dev', 'lo')
  run('route', 'add', '10.96.0.0/16', 'dev', 'lo')
  run('-6', 'address', 'add', 'fd00:180::1/128', 'dev', 'lo', 'nodad')
  run('-6', 'route', 'add', 'fd00:96::/64', 'dev', 'lo')
  redirect('10.180.0.1')
}

/** Rewrites packets to the Service, and to UDP port 30053 anywhere, to one endpoint. */
function redirect(endpoint: string): void {
  const rules = `add table ip t
    delete table ip t
    table ip t { chain out { type nat hook output priority -100
      ip daddr 10.96.0.10 udp dport 53 dnat to ${endpoint}:8080
      ip daddr 192.0.2.1 udp dport 30053 dnat to ${endpoint}:8080
      }
    }
    add table ip6 t
    delete table ip6 t
    table ip6 t { chain out { type nat hook output priority -100
      ip6 daddr fd00:96::a udp dport 53 dnat to [fd00:180::1]:8080
      }
    }`
  execFileSync('nft', ['-f', '-'], { input: rules })
}

const dns = { name: 'dns', protocol: 'UDP', port: 53, nodePort: 30053 } as const

const text = ({ destination, answeredBy }: Pick<ServiceFlow, 'destination' | 'answeredBy'>) =>
  `${destination} <- ${answeredBy}`

/** The UDP flows of a family, in order. */
async function udpFlows(family: IpFamily): Promise<readonly string[]> {
  const place = ({ ip, port }: SocketAddress) => hostPort(ip, port)
  return (await listTrackedFlows(family))
    .filter(({ protocol }) => protocol === 'UDP')
    .map((flow) =>
      text({ destination: place(flow.destination), answeredBy: place(flow.answeredBy) }),
    )
    .sort()
}

t.test('UDP flows of the kernel are listed after DNAT', needsNft, async (t) => {
  prepareNode()
  const conntrack = new Conntrack()
  t.teardown(() => conntrack.close())
  await send(40001, '10.96.0.10', 53)
  await send(40002, '192.0.2.1', 30053)
  await send(40003, '10.180.0.2', 30053)
  await send(40004, 'fd00:96::a', 53)
  const server = await import('node:net').then(({ createServer }) => createServer().listen(9000))
  await once(server, 'listening')
  await fetch('http://10.180.0.1:9000', { signal: AbortSignal.timeout(100) }).catch(() => undefined)
  server.close()

  t.strictSame(await udpFlows('IPv4'), [
    '10.180.0.2:30053 <- 10.180.0.2:30053',
    '10.96.0.10:53 <- 10.180.0.1:8080',
    '192.0.2.1:30053 <- 10.180.0.1:8080',
  ])
  t.strictSame(await udpFlows('IPv6'), ['[fd00:96::a]:53 <- [fd00:180::1]:8080'])

  const cluster = states('IPv4').put(service({ ...dns, endpoints: ['10.180.0.1'] }))
  const before = cluster.take()
  const kept = await conntrack.delete('IPv4', { ...udp, isStale: staleFlowTest(before) })
  t.strictSame(kept, { deleted: 0, left: 0 }, 'flows to a serving endpoint stay')

  // CT03: no endpoint is left. CT04: the flow to 10.180.0.2:30053 goes to no node port and stays.
  const after = cluster.put(service({ ...dns, endpoints: [] })).take()
  const cleaned = await conntrack.delete('IPv4', { ...udp, isStale: staleFlowTest(after, before) })
  t.strictSame(cleaned, { deleted: 2, left: 0 })
  t.strictSame(await udpFlows('IPv4'), ['10.180.0.2:30053 <- 10.180.0.2:30053'])
  t.equal((await udpFlows('IPv6')).length, 1, 'the other family is untouched')
})

t.test('CT01: a client that keeps its port moves to the new endpoint', needsNft, async (t) => {
  const conntrack = new Conntrack()
  t.teardown(() => conntrack.close())
  await send(40010, '10.96.0.10', 53)
  redirect('10.180.0.2')
  await send(40010, '10.96.0.10', 53)
  const mine = async () => (await udpFlows('IPv4')).filter((text) => text.startsWith('10.96.0.10:'))
  t.strictSame(await mine(), ['10.96.0.10:53 <- 10.180.0.1:8080'])
  const moved = states('IPv4').put(service({ ...dns, endpoints: ['10.180.0.2'] }))
  await conntrack.delete('IPv4', { ...udp, isStale: staleFlowTest(moved.take()) })
  await send(40010, '10.96.0.10', 53)
  t.strictSame(await mine(), ['10.96.0.10:53 <- 10.180.0.2:8080'])
})

t.test(
  'a spent budget leaves the rest for the next call, and without one nothing is left',
  needsNft,
  async (t) => {
    const conntrack = new Conntrack()
    t.teardown(() => conntrack.close())
    const sockets = 230
    for (let index = 0; index < sockets; index++) await send(41000 + index, '10.180.0.2', 99)
    const isMine = (flow: ServiceFlow) => flow.destination === '10.180.0.2:99'
    const first = await conntrack.delete('IPv4', { ...udp, isStale: isMine, budgetMs: 0 })
    t.strictSame(first, { deleted: 100, left: sockets - 100 })
    // On a slow node, to find them takes long.
    const hold = new Int32Array(new SharedArrayBuffer(4))
    const slowly = (flow: ServiceFlow) => {
      if (Atomics.add(hold, 0, 1) === 0) Atomics.wait(hold, 0, 1, 5_100)
      return isMine(flow)
    }
    const second = await conntrack.delete('IPv4', { ...udp, isStale: slowly })
    t.strictSame(second, { deleted: sockets - 100, left: 0 })
  },
)

t.test(
  'of TCP connections those without an answer are deleted, and no others',
  needsNft,
  async (t) => {
    const conntrack = new Conntrack()
    t.teardown(() => conntrack.close())
    // The kernel tracks connections only if a rule needs it.
    execFileSync('nft', ['-f', '-'], {
      input: `table ip tracked { chain in { type filter hook input priority 0
      ct state established accept
      }
    }`,
    })
    const server = createServer().listen(9001)
    await once(server, 'listening')
    const answered = connect(9001, '10.180.0.1')
    await once(answered, 'connect')
    // Nobody has this address, so the packet is never answered.
    const unanswered = connect(9003, '10.96.0.99').on('error', () => undefined)
    t.teardown(() => {
      unanswered.destroy()
      answered.destroy()
      server.close()
    })
    const seen: string[] = []
    const isMine = (flow: ServiceFlow) => {
      seen.push(text(flow))
      return true
    }
    const mine = { isUnanswered: true, isStale: isMine }
    let deleted = 0
    while (seen.length === 0) {
      await delay(20)
      deleted += (await conntrack.delete('IPv4', { ...mine, protocol: 'TCP' })).deleted
    }
    t.same([...new Set(seen)], ['10.96.0.99:9003 <- 10.96.0.99:9003'])
    t.equal(deleted, seen.length)
    const left: string[] = []
    await conntrack.delete('IPv4', {
      protocol: 'TCP',
      isStale: (flow) => left.push(text(flow)) < 0,
    })
    t.ok(left.includes('10.180.0.1:9001 <- 10.180.0.1:9001'), left.join(', '))
  },
)

t.test(
  'a flow whose TCP connection is open all the same is noted as open, not deleted',
  { skip: reason ?? programSkip('conntrack') },
  async (t) => {
    const conntrack = new Conntrack()
    t.teardown(() => conntrack.close())
    for (const port of ['40000', '40001']) {
      enter(`-I -p tcp -s 10.180.0.1 -d 10.96.0.98 --sport ${port} --dport 9006
        --reply-src 10.96.0.98 --reply-dst 10.180.0.1 --reply-port-src 9006 --reply-port-dst ${port}
        --state SYN_SENT -t 60`)
    }
    const { deleted } = await conntrack.delete('IPv4', {
      ...{ protocol: 'TCP', isUnanswered: true },
      isStale: ({ destination }) => destination === '10.96.0.98:9006',
      isOpen: (client) => client === '10.180.0.1:40000',
    })
    t.equal(deleted, 1)
    const list = ['-L', '-p', 'tcp', '-d', '10.96.0.98']
    const left = execFileSync('conntrack', list, { encoding: 'utf8', stdio: 'pipe' })
    t.match(left, /^tcp +6 86\d{3} ESTABLISHED src=10.180.0.1 dst=10.96.0.98 sport=40000 .*ASSURED/)
    t.notMatch(left, 'UNREPLIED')
    t.notMatch(left, 'sport=40001')
  },
)

t.test(
  'unanswered attempts to connect over SCTP are deleted alone, too',
  { skip: reason ?? programSkip('conntrack') },
  async (t) => {
    const conntrack = new Conntrack()
    t.teardown(() => conntrack.close())
    // The kernel needs no SCTP for this: an attempt is an entry of the table.
    const attempt = `-I -p sctp -s 10.180.0.1 -d 10.96.0.99 --sport 40000 --dport 9004
      --reply-src 10.96.0.99 --reply-dst 10.180.0.1 --reply-port-src 9004 --reply-port-dst 40000
      --state COOKIE_WAIT --orig-vtag 1 --reply-vtag 0 -t 60`
    const answered = attempt.replaceAll('9004', '9005') + ' --status SEEN_REPLY'
    for (const each of [attempt, answered]) enter(each)
    const seen: string[] = []
    const isMine = (flow: ServiceFlow) => seen.push(text(flow)) > 0
    const mine = { isUnanswered: true, isStale: isMine }
    t.equal((await conntrack.delete('IPv4', { ...mine, protocol: 'SCTP' })).deleted, 1)
    t.same(seen, ['10.96.0.99:9004 <- 10.96.0.99:9004'])
  },
)
