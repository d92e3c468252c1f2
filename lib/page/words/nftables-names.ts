import type { BaseHook, Chain } from '../../kernel/nftables/model.js'

/** The chains, sets and maps of nftables mode in words, by their names. */

/** Names of chains and sets of a Service: kind-HASH-namespace/name/protocol/port[__ip/port]. */
export const owned =
  /^(service|external|local|firewall|endpoint|affinity|clients)-[A-Z2-7]{8}-([^/]+)\/([^/]+)\/(\w+)\/([^_]*)(?:__(.+)\/(\d+))?$/

const sets: Readonly<Record<string, string>> = {
  'cluster-ips': 'every ClusterIP',
  'firewall-ips': 'load-balancer addresses that only some clients may use',
  'hairpin-connections': 'pods that may reach themselves through their Service',
  'no-endpoint-nodeports': 'node ports without endpoints',
  'no-endpoint-services': 'addresses without endpoints',
  'nodeport-ips': 'addresses of this node on which node ports answer',
  'service-ips': 'address, protocol and port of every Service, and the chain for it',
  'service-nodeports': 'every node port, and the chain for it',
}

/** Chains and sets that Services share, by their number of endpoints: `tcp-up-to-16`. */
export const shared = /^(?:tcp|udp|sctp)-(services|up-to|draw)(?:-(\d+))?$/

export function setWords(name: string): string {
  if (name.startsWith('affinity-')) return 'clients this endpoint remembers, each for a while'
  if (name.endsWith('-endpoints'))
    return 'endpoints by ClusterIP, port and a number drawn by chance'
  const size = shared.exec(name)?.[2]
  if (size !== undefined)
    return `Services of more than ${Number(size) / 4} endpoints and up to ${size}`
  return sets[name] ?? 'a set of its own'
}

const chains: Readonly<Record<string, string>> = {
  'cluster-ips-check': 'connections to a ClusterIP at a port that no Service has',
  'firewall-check': 'load balancers that only some clients may use',
  'mark-for-masquerade': 'marks packets that get an address of this node as source',
  masquerading: 'gives marked packets an address of this node as source',
  'nodeport-endpoints-check': 'node ports without endpoints',
  'service-endpoints-check': 'Services without endpoints',
  'reject-chain': 'refuses, and tells the sender',
  'drop-chain': 'drops, and tells the proxy',
  services: 'which Service is it for?',
}

const hooks: Readonly<Record<BaseHook['hook'], string>> = {
  prerouting: 'when a packet comes in, before routing',
  input: 'when a packet is for this node',
  forward: 'when a packet passes through this node',
  output: 'when a process of this node sends',
  postrouting: 'when a packet leaves',
}

export function hookWords({ base }: Chain): string | undefined {
  return base && `the kernel calls it ${hooks[base.hook]}`
}

export function chainWords(name: string): string {
  const known = chains[name]
  if (known !== undefined) return known
  const [, part, places] = shared.exec(name) ?? []
  if (part === 'services') return 'Services with only a ClusterIP, by their number of endpoints'
  if (part === 'up-to') return `one endpoint by chance, for every Service of up to ${places}`
  if (part === 'draw') return `draws one of ${places} places; after an empty one it draws again`
  const [, kind = '', , , , , ip = '', port = ''] = owned.exec(name) ?? []
  if (kind === 'endpoint') return `endpoint ${ip}:${port}, whose clients are remembered`
  return chainsOfServices[kind] ?? 'a chain of its own'
}

const chainsOfServices: Readonly<Record<string, string>> = {
  service: 'the endpoints of this Service, one by chance',
  local: 'the endpoints of this Service on this node, one by chance',
  external: 'traffic that came to an external address or node port',
  firewall: 'who may use the load balancer of this Service?',
  clients: 'clients that some of the endpoints remember',
}
