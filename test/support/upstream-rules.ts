import { createHash } from 'node:crypto'
import { runCommand } from './run-command.js'
import { addressOf } from '../../lib/lab/world/topology.js'
import type { World } from '../../lib/lab/world/world.js'

/**
 * The rules of Go's kube-proxy 1.36 for one Service (default/web, TCP port 80 and UDP port 53, node
 * ports 30080 and 30053, endpoints pod-1 and pod-2), written by hand from what it is known to write
 * (IT01-IT33, IP01-IP24, NF01-NF16). Beside them stands what kubelet puts next to them.
 */

export type UpstreamMode = 'iptables' | 'ipvs' | 'nftables'

export const upstreamService = { clusterIp: '10.96.0.10', nodePort: 30_080, udpPort: 53 } as const

const endpoints = (['pod-1', 'pod-2'] as const).map((pod) => addressOf(pod, 'IPv4'))
const ports = [
  { name: 'http', protocol: 'tcp', port: 80, nodePort: upstreamService.nodePort },
  { name: 'dns', protocol: 'udp', port: upstreamService.udpPort, nodePort: 30_053 },
] as const
const podCidr = '10.244.0.0/16'
const vip = upstreamService.clusterIp

/** Writes what such a kube-proxy has in the kernel. Jumps that are there stay, and then stand twice. */
export async function writeUpstreamRules(world: World, mode: UpstreamMode): Promise<void> {
  await enter(world, ['iptables-restore', '--noflush'], kubeletRules)
  if (mode === 'nftables') await enter(world, ['nft', '-f', '-'], nftRules())
  if (mode === 'iptables') await enter(world, ['iptables-restore', '--noflush'], iptablesRules())
  if (mode === 'ipvs') await writeIpvs(world)
}

/** L16: removes what kube-proxy removes of other modes at its start, before it writes anything. */
export async function cleanAsUpstream(world: World, mode: UpstreamMode): Promise<void> {
  if (mode !== 'nftables') {
    for (const family of ['ip', 'ip6']) {
      await world.exec('node', ['nft', 'delete', 'table', family, 'kube-proxy'])
    }
    return
  }
  // IT50: jumps and chains of iptables mode.
  const saved = (await world.exec('node', ['iptables-save'])).stdout
  await enter(world, ['iptables-restore', '--noflush'], removalOf(saved))
}

async function enter(world: World, argv: readonly string[], stdin: string): Promise<void> {
  const { code, stderr } = await world.exec('node', argv, { stdin })
  if (code !== 0) throw new Error(`${argv.join(' ')}: ${stderr}`)
}

/** 16 characters of base32 of SHA-256, as in every KUBE-SVC- and KUBE-SEP- (IT02). */
function hash(text: string): string {
  const digest = createHash('sha256').update(text).digest()
  const bits = [...digest].map((byte) => byte.toString(2).padStart(8, '0')).join('')
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'
  return (bits.match(/.{5}/g) ?? [])
    .map((five) => letters[parseInt(five, 2)])
    .slice(0, 16)
    .join('')
}

const kubeletRules = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
`

const markRules = `-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
`

/** [table, chain, match and comment, target], as IT04 lists them. */
const jumps = [
  ['nat', 'OUTPUT', '-m comment --comment "kubernetes service portals"', 'KUBE-SERVICES'],
  ['nat', 'PREROUTING', '-m comment --comment "kubernetes service portals"', 'KUBE-SERVICES'],
  ['nat', 'POSTROUTING', '-m comment --comment "kubernetes postrouting rules"', 'KUBE-POSTROUTING'],
  [
    'filter',
    'INPUT',
    '-m comment --comment "kubernetes health check service ports"',
    'KUBE-NODEPORTS',
  ],
  ...['INPUT', 'FORWARD'].map((chain) => [
    'filter',
    chain,
    '-m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals"',
    'KUBE-EXTERNAL-SERVICES',
  ]),
  ['filter', 'FORWARD', '-m comment --comment "kubernetes forwarding rules"', 'KUBE-FORWARD'],
  ...['FORWARD', 'OUTPUT'].map((chain) => [
    'filter',
    chain,
    '-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals"',
    'KUBE-SERVICES',
  ]),
  ...['INPUT', 'FORWARD', 'OUTPUT'].map((chain) => [
    'filter',
    chain,
    '-m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall"',
    'KUBE-PROXY-FIREWALL',
  ]),
] as const

function jumpRules(table: string): string {
  const own = jumps.filter(([of]) => of === table)
  return own.map(([, chain, match, target]) => `-I ${chain} ${match} -j ${target}\n`).join('')
}

function iptablesRules(): string {
  const chains: string[] = []
  const rules: string[] = []
  const dispatch: string[] = []
  const nodePorts: string[] = []
  for (const { name, protocol, port, nodePort } of ports) {
    const id = `default/web:${name}`
    const service = `KUBE-SVC-${hash(id + protocol)}`
    chains.push(service)
    const to = `-d ${vip}/32 -p ${protocol} -m comment --comment "${id} cluster IP" -m ${protocol} --dport ${port}`
    dispatch.push(`-A KUBE-SERVICES ${to} -j ${service}`)
    rules.push(`-A ${service} ! -s ${podCidr} ${to} -j KUBE-MARK-MASQ`)
    endpoints.forEach((ip, index) => {
      const chain = `KUBE-SEP-${hash(`${id}${protocol}${ip}:8080`)}`
      chains.push(chain)
      const share = index === 0 ? '-m statistic --mode random --probability 0.5000000000 ' : ''
      rules.push(
        `-A ${service} -m comment --comment "${id} -> ${ip}:8080" ${share}-j ${chain}`,
        `-A ${chain} -s ${ip}/32 -m comment --comment "${id}" -j KUBE-MARK-MASQ`,
        `-A ${chain} -p ${protocol} -m comment --comment "${id}" -m ${protocol} -j DNAT --to-destination ${ip}:8080`,
      )
    })
    const external = `KUBE-EXT-${hash(id + protocol)}`
    chains.push(external)
    nodePorts.push(
      `-A KUBE-NODEPORTS -p ${protocol} -m comment --comment "${id}" -m ${protocol} --dport ${nodePort} -j ${external}`,
    )
    rules.push(
      `-A ${external} -m comment --comment "masquerade traffic for ${id} external destinations" -j KUBE-MARK-MASQ`,
      `-A ${external} -j ${service}`,
    )
  }
  const fixed = ['SERVICES', 'NODEPORTS', 'POSTROUTING', 'MARK-MASQ', 'PROXY-CANARY']
  const inFilter = [
    'SERVICES',
    'EXTERNAL-SERVICES',
    'NODEPORTS',
    'FORWARD',
    'PROXY-FIREWALL',
    'PROXY-CANARY',
  ]
  const declare = (names: readonly string[]) => names.map((name) => `:${name} - [0:0]\n`).join('')
  return `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
${declare(inFilter.map((name) => `KUBE-${name}`))}${jumpRules('filter')}-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
${declare(fixed.map((name) => `KUBE-${name}`))}${declare(chains)}${jumpRules('nat')}${markRules}${dispatch.join('\n')}
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
${nodePorts.join('\n')}
${rules.join('\n')}
COMMIT
`
}

/** Removes the jumps and every chain but kubelet's. */
function removalOf(saved: string): string {
  const lines: string[] = []
  for (const line of saved.split('\n')) {
    if (line.startsWith('*') || line === 'COMMIT') {
      if (line === 'COMMIT') {
        const table = lines.slice(lines.findLastIndex((one) => one.startsWith('*')))
        const chains = table
          .filter((one) => one.startsWith(':'))
          .map((one) => one.split(' ')[0]?.slice(1) ?? '')
        lines.push(...chains.map((chain) => `-X ${chain}`))
      }
      lines.push(line)
    }
    const ours = /^:(KUBE-(?!KUBELET|IPTABLES-HINT|FIREWALL)\S+)/.exec(line)?.[1]
    if (ours !== undefined) lines.push(`:${ours} - [0:0]`)
    if (/^-A (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING) .*-j KUBE-(?!FIREWALL)/.test(line)) {
      lines.push(line.replace('-A', '-D'))
    }
  }
  // Jumps go before the chains they lead to.
  return `${lines.join('\n')}\n`
}

function nftRules(): string {
  const inner: string[] = []
  const elements: string[] = []
  const nodePorts: string[] = []
  for (const { name, protocol, port, nodePort } of ports) {
    const id = `${hash(`default/web:${name}${protocol}`).slice(0, 8)}-default/web/${protocol}/${name}`
    const targets = endpoints.map((ip, index) => `${index} : ${ip} . 8080`).join(', ')
    inner.push(
      `chain service-${id} {
        ip daddr ${vip} ${protocol} dport ${port} ip saddr != ${podCidr} jump mark-for-masquerade
        meta l4proto ${protocol} dnat ip to numgen random mod 2 map { ${targets} }
      }`,
    )
    elements.push(`${vip} . ${protocol} . ${port} : goto service-${id}`)
    inner.push(`chain external-${id} { jump mark-for-masquerade; goto service-${id}; }`)
    nodePorts.push(`${protocol} . ${nodePort} : goto external-${id}`)
  }
  return `add table ip kube-proxy
delete table ip kube-proxy
table ip kube-proxy {
  comment "rules for kube-proxy"
  set cluster-ips { type ipv4_addr; elements = { ${vip} }; }
  map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
  map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
  map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain mark-for-masquerade { mark set mark or 0x4000; }
  chain masquerading {
    mark and 0x4000 == 0 return
    mark set mark xor 0x4000
    masquerade fully-random
  }
  chain reject-chain { reject; }
  ${inner.join('\n  ')}
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { ${elements.join(', ')} }
  }
  map service-nodeports {
    type inet_proto . inet_service : verdict
    elements = { ${nodePorts.join(', ')} }
  }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports
  }
  chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain nodeport-endpoints-check { fib daddr type local meta l4proto . th dport vmap @no-endpoint-nodeports; }
  chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
  chain cluster-ips-check { ip daddr @cluster-ips reject; }
  chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }
  chain filter-output-pre-dnat { type filter hook output priority -110; ct state new jump firewall-check; }
  chain filter-input { type filter hook input priority 0; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }
  chain filter-forward { type filter hook forward priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
  chain filter-output { type filter hook output priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
  chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
`
}

/** IP01-IP20: virtual servers, their addresses on kube-ipvs0, sets, and a constant set of rules. */
async function writeIpvs(world: World): Promise<void> {
  await runCommand('modprobe', ['-a', 'ip_vs', 'ip_vs_rr'])
  const sets = `create KUBE-CLUSTER-IP hash:ip,port -exist
create KUBE-LOOP-BACK hash:ip,port,ip -exist
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535 -exist
create KUBE-IPVS-IPS hash:ip -exist
${ports.map(({ protocol, port }) => `add KUBE-CLUSTER-IP ${vip},${protocol}:${port} -exist`).join('\n')}
${endpoints.flatMap((ip) => ports.map(({ protocol }) => `add KUBE-LOOP-BACK ${ip},${protocol}:8080,${ip} -exist`)).join('\n')}
add KUBE-NODE-PORT-TCP ${upstreamService.nodePort} -exist
add KUBE-IPVS-IPS ${vip} -exist
`
  await enter(world, ['ipset', 'restore'], sets)
  const chains = ['SERVICES', 'POSTROUTING', 'MARK-MASQ', 'NODE-PORT', 'LOAD-BALANCER']
  const declare = (names: readonly string[]) => names.map((of) => `:KUBE-${of} - [0:0]\n`).join('')
  await enter(
    world,
    ['iptables-restore', '--noflush'],
    `*filter
${declare(['FORWARD', 'NODE-PORT', 'PROXY-FIREWALL', 'SOURCE-RANGES-FIREWALL', 'IPVS-FILTER', 'IPVS-OUT-FILTER'])}-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-I OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
COMMIT
*nat
${declare(chains)}-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
${markRules}-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-SERVICES ! -s ${podCidr} -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
COMMIT
`,
  )
  const ip = (...args: string[]) => runCommand('ip', ['-n', world.namespaces.node, ...args])
  await ip('link', 'add', 'kube-ipvs0', 'type', 'dummy')
  await ip('address', 'add', `${vip}/32`, 'dev', 'kube-ipvs0')
  await world.agent('node').write({ '/proc/sys/net/ipv4/vs/conntrack': '1' })
  const servers = [
    ['-t', `${vip}:80`],
    ['-u', `${vip}:${upstreamService.udpPort}`],
    ...['192.168.50.1', '192.168.50.11', '10.244.1.1'].map((address) => [
      '-t',
      `${address}:${upstreamService.nodePort}`,
    ]),
  ]
  const text = servers.flatMap(([kind, address]) => [
    `-A ${kind} ${address} -s rr`,
    ...endpoints.map((endpoint) => `-a ${kind} ${address} -r ${endpoint}:8080 -m -w 1`),
  ])
  await enter(world, ['ipvsadm', '-R'], `${text.join('\n')}\n`)
}
