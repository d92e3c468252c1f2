import t from 'tap'
import { TraceCollector } from '../../../lib/cli/trace-collector.js'
import { parseTraceLine, type TraceEvent } from '../../../lib/inspect/trace/events.js'
import { CountedPages } from '../../../lib/inspect/trace/counted-pages.js'
import { socketStories } from '../../../lib/inspect/trace/socket-stories.js'
import {
  storyOf,
  storyText,
  ownerInName,
  type TraceStory,
} from '../../../lib/inspect/trace/story.js'

const packet = (daddr: string, dport: number) =>
  `packet: iif "cbr0" oif "eth0" ip saddr 10.244.1.10 ip daddr ${daddr} ip ttl 64 tcp sport 4000 tcp dport ${dport} tcp flags == syn`

const read = (...lines: string[]): TraceEvent[] =>
  lines.flatMap((line) => parseTraceLine(`trace id 0a1b2c3d ${line}`) ?? [])

const context = {
  target: { ip: '10.96.0.10', port: 80 },
  ownerOf: ownerInName,
  ownerOfTarget: 'default/web:http',
}

function collectorOf(count: number) {
  const stories: TraceStory[] = []
  const collector = new TraceCollector(count, context.target, (events) => {
    stories.push(storyOf(events, context))
  })
  return { collector, stories }
}

t.test('trace turns lines of nft into events, and leaves out counters and foreign lines', (t) => {
  t.equal(parseTraceLine('add table ip x'), undefined)
  const [rule] = read(
    'ip nat KUBE-SERVICES rule ip daddr 10.96.0.10 counter packets 4 bytes 240 jump KUBE-SVC-X (verdict jump KUBE-SVC-X)',
  )
  t.match(rule, {
    table: 'ip nat',
    chain: 'KUBE-SERVICES',
    rule: 'ip daddr 10.96.0.10 jump KUBE-SVC-X',
    verdict: 'jump KUBE-SVC-X',
  })
  t.end()
})

t.test('trace does not describe the removal of a mark as marking', (t) => {
  const whys = (...rules: string[]) =>
    storyOf(
      read(
        `ip nat KUBE-POSTROUTING ${packet('10.96.0.10', 80)}`,
        ...rules.map((rule) => `ip nat KUBE-POSTROUTING rule ${rule} (verdict continue)`),
      ),
      context,
    ).hops.map(({ why }) => why)
  const gone = whys(
    'counter packets 0 bytes 0 meta mark set mark xor 0x4000',
    'meta mark set meta mark ^ 0x00004000',
    '-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0',
    '-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000',
  )
  t.same(new Set(gone), new Set(['the mark is removed']))
  t.equal(gone.length, 4)
  const made = whys(
    'meta mark set mark or 0x4000',
    'meta mark set meta mark | 0x00004000',
    '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000',
    '-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000',
  )
  t.same(new Set(made), new Set(['marked for a later rule']))
  t.equal(made.length, 4)
  const asked = whys(
    'tcp dport 46581 ct status dnat',
    '-A KUBE-NODEPORT-NON-LOCAL -m conntrack --ctstate DNAT -j ACCEPT',
  )
  t.same(asked, ['matched, without a verdict', 'matched, without a verdict'], 'a state is no DNAT')
  t.end()
})

t.test('a packet that is given a new id on its way is one connection', (t) => {
  const redirected = read(
    `ip nat PREROUTING ${packet('10.96.0.10', 80)}`,
    'ip nat PREROUTING rule tcp dport 80 redirect to :46581 (verdict accept)',
  )
  const inside = [
    `ip filter INPUT ${packet('10.244.1.1', 46581)}`,
    'ip filter INPUT rule ct status dnat accept (verdict accept)',
  ]
  const again = `ip nat PREROUTING ${packet('10.96.0.10', 80)}`
  const renamed = (id: string, ...lines: string[]) =>
    read(...lines).map((event) => ({ ...event, id }))
  const { collector, stories } = collectorOf(2)
  for (const event of [...redirected, ...renamed('2', ...inside)]) collector.add(event)
  t.equal(collector.size, 1)
  for (const event of renamed('3', again)) collector.add(event)
  t.equal(collector.size, 2, 'one that is sent again is another packet')
  collector.end()
  const [story] = stories
  t.match(story, { to: '10.96.0.10:80', destination: '10.244.1.1:46581' })
  t.equal(story?.hops.length, 2)
  t.end()
})

t.test('a packet that is given a new id between two interfaces is one connection', (t) => {
  const { collector, stories } = collectorOf(1)
  const forwarded = packet('10.96.0.10', 80)
  const events = read(
    `ip kube-proxy nat-prerouting ${forwarded.replace('oif "eth0" ', '')}`,
    `ip kube-proxy filter-forward ${forwarded}`,
    'ip kube-proxy reject-chain rule reject (verdict drop)',
  ).map((event, index) => ({ ...event, id: index === 0 ? '1' : '2' }))
  for (const event of events) collector.add(event)
  collector.end()
  t.match(stories, [{ to: '10.96.0.10:80', end: 'rejected' }])
  t.end()
})

t.test('a packet of another trace is left to that one', (t) => {
  const { collector } = collectorOf(1)
  const rule = 'ip nat PREROUTING rule tcp dport 80 redirect to :46581 (verdict accept)'
  for (const [to, port] of [
    ['10.96.0.11', 80],
    ['10.96.0.10', 81],
  ] as const)
    for (const event of read(`ip nat PREROUTING ${packet(to, port)}`, rule)) collector.add(event)
  t.equal(collector.size, 0)
  t.end()
})

t.test('trace does not say that a packet was sent which the routing of the node has lost', (t) => {
  const comesIn = (to: string, port: number) => packet(to, port).replace('oif "eth0" ', '')
  const way = [
    `ip kube-proxy nat-prerouting ${comesIn('10.96.0.10', 80)}`,
    'ip kube-proxy service-x rule dnat ip to numgen random mod 2 map { 0 : 10.244.1.21 . 8080 } (verdict accept)',
  ]
  const storyAfter = (...lines: string[]) => storyOf(read(...way, ...lines), context)
  const lost = storyAfter()
  t.equal(lost.end, 'lost')
  t.equal(storyOf(read(...way.slice(0, 1)), context).end, 'lost', 'also without a rule for it')
  t.match(storyText(lost, []), /^So it was lost in the routing of this node: /m)
  const seen = storyAfter(`ip kube-proxy filter-forward ${packet('10.244.1.21', 8080)}`)
  t.match(seen, { end: 'sent', destination: '10.244.1.21:8080' })
  const local = storyAfter(`ip filter INPUT ${comesIn('192.0.2.1', 46581)}`)
  t.match(local, { end: 'sent', destination: '192.0.2.1:46581' })
  const same = storyAfter(`ip kube-proxy filter-input ${comesIn('10.96.0.10', 80)}`)
  t.equal(same.end, 'sent', 'the endpoint has the address that was asked for')
  const before = `inet firewalld filter_PREROUTING ${comesIn('10.244.1.21', 8080)}`
  t.equal(storyAfter(before).end, 'lost', 'a chain before the routing may come after the change')

  const sends = (to: string, port: number) => packet(to, port).replace('iif "cbr0" ', '')
  const own = [`ip kube-proxy nat-output ${sends('10.96.0.10', 80)}`, ...way.slice(1)]
  t.match(storyOf(read(...own), context), { end: 'lost', inInterface: '' })
  const routed = `ip kube-proxy filter-output ${sends('10.244.1.21', 8080)}`
  t.equal(storyOf(read(...own, routed), context).end, 'sent')
  t.end()
})

t.test('trace takes a word in a comment or in the name of a chain for no statement', (t) => {
  const ends = (...rules: string[]) => {
    const lines = rules.map((rule) => `ip nat KUBE-SVC-X rule ${rule}`)
    const { end, isMasqueraded } = storyOf(read(...lines), context)
    return [end, isMasqueraded]
  }
  t.same(ends('jump mark-for-masquerade (verdict jump mark-for-masquerade)'), ['sent', false])
  const mark = '-A KUBE-EXT-X -m comment --comment "masquerade traffic for web" -j KUBE-MARK-MASQ'
  t.same(ends(`${mark} (verdict jump KUBE-MARK-MASQ)`), ['sent', false])
  const chain = 'service-SUSTUHLJ-default/reject/tcp/http'
  t.same(ends(`goto ${chain} (verdict goto ${chain})`), ['sent', false])
  t.same(ends('masquerade fully-random (verdict accept)'), ['sent', true])
  t.same(ends('-A KUBE-POSTROUTING -j MASQUERADE --random-fully (verdict accept)'), ['sent', true])
  t.same(ends('ip daddr 10.96.0.1 xt target "REJECT" (verdict drop)'), ['rejected', false])
  t.same(ends('reject with icmp port-unreachable (verdict drop)'), ['rejected', false])
  t.end()
})

t.test('trace tells whose rules a packet met, and where it went', (t) => {
  const chain = 'service-SUSTUHLJ-default/web/tcp/http'
  const sent = storyOf(
    read(
      `ip kube-proxy nat-prerouting ${packet('10.96.0.10', 80)}`,
      `ip kube-proxy services rule ip daddr . meta l4proto . th dport vmap @service-ips (verdict goto ${chain})`,
      `ip kube-proxy ${chain} rule meta l4proto tcp dnat to 10.244.1.21:8080 (verdict accept)`,
      `ip kube-proxy filter-forward ${packet('10.244.1.21', 8080)}`,
    ),
    context,
  )
  t.match(sent, { from: '10.244.1.10:4000', end: 'sent', destination: '10.244.1.21:8080' })
  t.same(
    sent.hops.map(({ owner }) => owner),
    ['default/web:http', 'default/web:http'],
  )
  const portal = 'ip nat KUBE-PORTALS-CONTAINER rule -j DNAT --to-destination 192.0.2.1:46581'
  const handed = storyOf(read(`${portal} (verdict accept)`), context)
  t.match(handed.hops, [{ why: 'handed to a listener of this node, port 46581' }])
  t.match(storyText(sent, []), /=> on to chain service-\S+\n.*\n.*\n +=> the destination becomes/)
  const draw = 'dnat ip to ip daddr . tcp dport . numgen random mod 16 map @tcp-endpoints'
  const shared = storyOf(
    read(
      `ip kube-proxy nat-prerouting ${packet('10.96.0.10', 80)}`,
      'ip kube-proxy services rule ip daddr . meta l4proto . th dport vmap @service-ips (verdict goto tcp-services)',
      'ip kube-proxy tcp-services rule ip daddr . th dport @tcp-up-to-16 goto tcp-up-to-16 (verdict goto tcp-up-to-16)',
      'ip kube-proxy tcp-up-to-16 rule jump tcp-draw-16 (verdict jump tcp-draw-16)',
      `ip kube-proxy tcp-draw-16 rule ${draw} (verdict accept)`,
      'ip other chain rule ip saddr vmap @some (verdict accept)',
    ),
    context,
  )
  t.same(
    shared.hops.map(({ owner }) => owner),
    ['default/web:http', 'default/web:http', '', 'default/web:http', ''],
    'chains that many Services share are told by what was asked for',
  )
  const dropped = storyOf(
    read(
      `ip filter FORWARD ${packet('10.96.0.10', 80)}`,
      'ip filter FORWARD rule ip saddr 10.0.0.0/8 drop (verdict drop)',
    ),
    context,
  )
  t.match(dropped, { end: 'dropped', hops: [{ where: 'ip filter FORWARD' }] })
  const policy = read(
    `ip filter FORWARD ${packet('10.96.0.10', 80)}`,
    'ip filter FORWARD policy drop',
  )
  t.equal(storyOf(policy, context).end, 'dropped', 'a policy throws away, too')
  const refused = storyOf(read('ip filter KUBE-SERVICES rule reject (verdict drop)'), context)
  t.equal(refused.end, 'rejected')
  t.end()
})

t.test('trace tells of connections that were translated at the socket', (t) => {
  const page = (web: number, six: number, failed: number, refused: number) =>
    [
      `kubeproxy_service_connections_total{service="default/web:http",protocol="TCP",endpoint="10.244.1.10:8080"} ${web}`,
      `kubeproxy_service_connections_total{service="default/web:http",protocol="TCP",endpoint="[fd00::1]:8080"} ${six}`,
      `kubeproxy_service_connections_total{service="default/web:http",protocol="UDP",endpoint="10.244.1.10:8080"} ${web * 2}`,
      `kubeproxy_service_dial_errors_total{service="default/web:http",protocol="TCP",endpoint="10.244.1.11:8080"} ${failed}`,
      `kubeproxy_service_refused_connections_total{service="default/web:http",protocol="TCP"} ${refused}`,
    ].join('\n')
  const asked = { target: '10.96.0.10:80', isIp6: false, service: 'default/web:http' } as const
  const stories = socketStories(page(4, 1, 0, 0), page(5, 3, 1, 1), { ...asked, protocol: 'TCP' })
  t.same(
    stories.map(({ end, destination, hops: [hop] }) => [end, destination, hop?.where, hop?.owner]),
    [
      ['sent', '10.244.1.10:8080', 'call connect', asked.service],
      ['sent', '10.244.1.11:8080', 'call connect', asked.service],
      ['rejected', '10.96.0.10:80', 'call connect', asked.service],
    ],
  )
  const [story] = stories
  t.match(
    story && storyText(story, []),
    /of this node or of one of its pods:[^]*translated at connect\(\): the socket went to 10.244.1.10:8080/,
  )
  t.same(socketStories(page(5, 3, 1, 1), page(5, 3, 1, 1), { ...asked, protocol: 'TCP' }), [])
  const udp = page(4, 1, 0, 0).replaceAll('TCP', 'UDP')
  const later = page(4, 1, 1, 1).replaceAll('TCP', 'UDP')
  const why = 'failed with ECONNREFUSED, and no packet was sent'
  t.match(
    socketStories(udp, later, { ...asked, protocol: 'UDP' }).map(({ hops: [hop] }) => hop?.why),
    [
      /^translated at connect\(\) or sendto\(\): the socket/,
      `no endpoints: connect() or sendto() ${why}`,
    ],
  )
  t.end()
})

t.test('of connections that a proxy carries, each is told with its own endpoint', (t) => {
  const page = (counts: Readonly<Record<string, number>>) =>
    Object.entries(counts)
      .map(([at, count]) => {
        const [service, protocol, endpoint] = at.split(' ')
        return `kubeproxy_service_connections_total{service="${service}",protocol="${protocol}",endpoint="${endpoint}"} ${count}`
      })
      .join('\n')
  const [web, other] = ['default/web:http TCP', 'default/other:http TCP']
  const asked = { target: '10.96.0.10:80', isIp6: false, service: 'default/web:http' } as const
  const pages = new CountedPages({ ...asked, protocol: 'TCP' })
  t.same(pages.endpointsSince(0), [], 'no page has come')
  pages.add(page({ [`${web} 10.1.0.1:80`]: 7 }), 10)
  pages.add(
    page({
      [`${web} 10.1.0.1:80`]: 8,
      [`${web} [fd00::1]:80`]: 1,
      [`${other} 10.1.0.9:80`]: 4,
      'default/web:http UDP 10.1.0.3:80': 1,
    }),
    20,
  )
  t.same(pages.endpointsSince(15), ['10.1.0.1:80'], 'other Services do not count')
  pages.add(page({ [`${web} 10.1.0.1:80`]: 8, [`${web} 10.1.0.2:80`]: 2 }), 30)
  t.same(pages.endpointsSince(19), ['10.1.0.1:80', '10.1.0.2:80'], 'it may be either')
  t.same(pages.endpointsSince(20), ['10.1.0.2:80'], 'the one before it is told')
  pages.add(page({ [`${web} 10.1.0.1:80`]: 8, [`${web} 10.1.0.2:80`]: 2 }), 40)
  t.same(pages.endpointsSince(35), [], 'none has come yet')
  t.end()
})
