import { endpointWords, fixedOf, percent, serviceOf } from './words.js'
import type { LineWords, Surroundings } from './words.js'

/** Explains the lines of an nftables ruleset, `add … ip kube-proxy …`. */
export function nftablesWords(surroundings: Surroundings): (line: string) => LineWords | undefined {
  return (line) => {
    const [, what = '', rest = ''] = /^add (\w+) ip6? kube-proxy ?(.*)$/.exec(line) ?? []
    const [name = '', ...more] = rest.split(' ')
    const content = more.join(' ')
    switch (what) {
      case 'table':
        return {
          words: 'the one table that holds everything of kube-proxy',
          object: fixedOf('nftables'),
        }
      case 'set':
      case 'map':
        return { words: `makes the ${what} ${name}: ${setWords(name)}`, object: ownerOf(name) }
      case 'chain':
        return { words: `makes chain ${name}: ${chainWords(name, content)}`, object: ownerOf(name) }
      case 'element':
        return {
          words: elementWords(name, content, surroundings),
          object: elementOwner(name, content, surroundings),
        }
      case 'rule': {
        const words = ruleWords(content, surroundings)
        return words === undefined ? undefined : { words, object: ownerOf(name, content) }
      }
      default:
        return undefined
    }
  }
}

/** Names of chains and sets of a Service: kind-HASH-namespace/name/protocol/port[__ip/port]. */
const owned =
  /^(service|external|local|firewall|endpoint|affinity)-[A-Z2-7]{8}-([^/]+)\/([^/]+)\/(\w+)\/([^_]*)(?:__(.+)\/(\d+))?$/

function ownerOf(name: string, content = ''): string {
  const [, kind, namespace, service, , port, ip, endpointPort] = owned.exec(name) ?? []
  if (namespace === undefined || service === undefined)
    return shared.test(name) ? 'every Service that has its ClusterIP alone' : fixedOf('nftables')
  const portName = `${namespace}/${service}${port === '' ? '' : `:${port}`}`
  return serviceOf(portName, fieldOf(kind ?? '', content, ip, endpointPort))
}

function fieldOf(kind: string, content: string, ip?: string, port?: string): string {
  if (kind === 'affinity' || content.includes('@affinity-')) return 'spec.sessionAffinity'
  if (ip !== undefined) return `${ip}:${port} in its EndpointSlice`
  if (kind === 'firewall') return 'spec.loadBalancerSourceRanges'
  if (kind === 'external' || kind === 'local') return 'spec.externalTrafficPolicy'
  return content.includes('numgen') || content.includes('dnat') ? 'its EndpointSlices' : ''
}

const sets: Readonly<Record<string, string>> = {
  'cluster-ips': 'every ClusterIP there is',
  'firewall-ips': 'load-balancer addresses that only some may use',
  'hairpin-connections': 'pods that may reach themselves through their Service',
  'no-endpoint-nodeports': 'node ports that have nobody to send to',
  'no-endpoint-services': 'addresses that have nobody to send to',
  'nodeport-ips': 'addresses of this node on which node ports answer',
  'service-ips': 'address, protocol and port of every Service, and the chain for it',
  'service-nodeports': 'every node port, and the chain for it',
}

/** Chains and sets that are there while Services share them, for how many endpoints: `tcp-up-to-16`. */
const shared = /^(?:tcp|udp|sctp)-(services|up-to|draw)(?:-(\d+))?$/

function setWords(name: string): string {
  if (name.startsWith('affinity-')) return 'clients this endpoint remembers, each for a while'
  if (name.endsWith('-endpoints'))
    return 'endpoints by ClusterIP, port and a number drawn by chance'
  const size = shared.exec(name)?.[2]
  if (size !== undefined)
    return `Services of more than ${Number(size) / 4} endpoints and up to ${size}`
  return sets[name] ?? 'a set of its own'
}

const chains: Readonly<Record<string, string>> = {
  'cluster-ips-check': 'ClusterIPs asked at a port that no Service has',
  'firewall-check': 'load balancers that only some may use',
  'mark-for-masquerade': 'marks what shall get an address of this node as source',
  masquerading: 'gives marked packets an address of this node as source',
  'nodeport-endpoints-check': 'node ports that have nobody to send to',
  'service-endpoints-check': 'Services that have nobody to send to',
  'reject-chain': 'refuses, and tells the sender',
  services: 'which Service is it for?',
}

const hooks: Readonly<Record<string, string>> = {
  prerouting: 'when a packet comes in, before routing',
  input: 'when a packet is for this node',
  forward: 'when a packet passes through this node',
  output: 'when a process of this node sends',
  postrouting: 'when a packet leaves',
}

function chainWords(name: string, content = ''): string {
  const hook = /hook (\w+)/.exec(content)?.[1]
  if (hook !== undefined) return `the kernel calls it ${hooks[hook] ?? hook}`
  const known = chains[name]
  if (known !== undefined) return known
  const [, part, places] = shared.exec(name) ?? []
  if (part === 'services')
    return 'Services that have their ClusterIP alone, by how many endpoints they have'
  if (part === 'up-to') return `one endpoint by chance, for every Service of up to ${places}`
  if (part === 'draw') return `draws one of ${places} places; who draws an empty one draws again`
  const [, kind, , , , , ip, port] = owned.exec(name) ?? []
  switch (kind) {
    case 'service':
      return 'the endpoints of this Service, one by chance'
    case 'local':
      return 'the endpoints of this Service on this node, one by chance'
    case 'external':
      return 'traffic that came to an external address or node port'
    case 'firewall':
      return 'who may use the load balancer of this Service?'
    case 'endpoint':
      return `endpoint ${ip ?? ''}:${port ?? ''}, which remembers its clients`
    default:
      return 'a chain of its own'
  }
}

function elementWords(set: string, content: string, around: Surroundings): string {
  const elements = content.replace(/^\{ | \}$/g, '').split(', ')
  const [first = ''] = elements
  const [key = '', verdict] = first.split(' : ')
  const plainKey = key.replace(/ comment ".*"$/, '')
  if (set.endsWith('-endpoints')) {
    const entries = elements.map((element) => {
      const [at = '', endpoint = ''] = element.split(' : ')
      const [address, port, number] = at.split(' . ')
      return `${address} port ${port} number ${number} is ${endpointWords(endpoint.replace(' . ', ':'), around)}`
    })
    return `in ${set} (${setWords(set)}): ${entries.join(', ')}`
  }
  const more = elements.length > 1 ? `, and ${elements.length - 1} more like it` : ''
  const chain = verdict === undefined ? undefined : /(?:goto|jump) (\S+)/.exec(verdict)?.[1]
  const then =
    chain !== undefined
      ? `: go to chain ${chain}, ${chainWords(chain)}`
      : verdict === undefined
        ? ''
        : `: ${verdict}`
  return `${plainKey} stands in ${set} (${setWords(set)})${then}${more}`
}

function elementOwner(set: string, content: string, { owner }: Surroundings): string {
  const byComment = /comment "([^"]+)"/.exec(content)?.[1]
  const chain = /(?:goto|jump) (\S+)/.exec(content)?.[1]
  const field: Readonly<Record<string, string>> = {
    'cluster-ips': 'spec.clusterIP',
    'service-ips': 'spec.clusterIP, spec.externalIPs and status.loadBalancer',
    'service-nodeports': 'spec.ports[].nodePort',
    'firewall-ips': 'spec.loadBalancerSourceRanges',
    'no-endpoint-services': 'nothing ready in its EndpointSlices',
    'no-endpoint-nodeports': 'nothing ready in its EndpointSlices',
  }
  if (byComment !== undefined) return serviceOf(byComment, field[set])
  const [, , namespace, service, , port] = owned.exec(chain ?? '') ?? []
  if (namespace !== undefined && service !== undefined) {
    const isMany = content.split(' : ').length > 2
    const portName = `${namespace}/${service}${port === '' ? '' : `:${port}`}`
    return `${serviceOf(portName, field[set])}${isMany ? ', and others' : ''}`
  }
  if (owner !== undefined) return serviceOf(owner, field[set] ?? 'its EndpointSlices')
  if (set.endsWith('-endpoints') || shared.test(set))
    return 'every EndpointSlice of Services with a ClusterIP only'
  if (set === 'cluster-ips') return 'every Service: spec.clusterIP'
  if (set === 'hairpin-connections') return 'every EndpointSlice: endpoints on this node'
  return set === 'nodeport-ips' ? 'the addresses of this node' : fixedOf('nftables')
}

type Phrase = readonly [
  pattern: RegExp,
  words: (match: RegExpExecArray, around: Surroundings) => string,
]

/** What stands in rules, tried from the left; conditions first, then what is done. */
const phrases: readonly Phrase[] = [
  [
    /^ip6? saddr \. ip6? daddr \. meta l4proto \. th dport @hairpin-connections/,
    () => 'from a pod of this node to itself',
  ],
  [
    /^ip6? daddr \. meta l4proto \. th dport vmap @(\S+)/,
    ([, map = '']) => `looked up by destination, protocol and port in map ${map}: ${setWords(map)}`,
  ],
  [
    /^meta l4proto \. th dport vmap @(\S+)/,
    ([, map = '']) => `looked up by protocol and port in map ${map}: ${setWords(map)}`,
  ],
  [
    /^ip6? daddr \. th dport @(\S+)/,
    ([, set = '']) => `destination and port in ${set} (${setWords(set)})`,
  ],
  [/^ip6? daddr @(\S+)/, ([, set = '']) => `to one of ${set} (${setWords(set)})`],
  [/^ip6? saddr @affinity-\S+/, () => 'from a client that this endpoint remembers'],
  [/^ip6? saddr != (\{[^}]*\}|\S+)/, ([, from = '']) => `not from ${from}`],
  [/^ip6? saddr (\{[^}]*\}|\S+)/, ([, from = '']) => `from ${from}`],
  [/^ip6? daddr (\{[^}]*\}|\S+)/, ([, to = '']) => `to ${to}`],
  [
    /^iifname (!= )?"([^"]+)"/,
    ([, not, name = '']) => `${not === undefined ? '' : 'not '}coming in by ${name}`,
  ],
  [/^fib saddr type local/, () => 'sent by this node itself'],
  [/^fib daddr type local/, () => 'for an address of this node'],
  [/^ct state new/, () => 'the first packet of a connection'],
  [/^ct state invalid/, () => 'what fits no connection the kernel knows'],
  [/^ct status dnat/, () => 'whose destination was rewritten'],
  [
    /^meta mark & \S+ != 0(?: meta mark set meta mark \^ \S+)?/,
    () => 'marked (the mark is taken off)',
  ],
  [
    /^meta mark set meta mark \| \S+/,
    () => 'marked, so that its source becomes an address of this node',
  ],
  [/^update @affinity-\S+ \{ ip6? saddr \}/, () => 'the client is remembered for this endpoint'],
  [/^meta l4proto (\w+)/, ([, protocol = '']) => protocol.toUpperCase()],
  [
    /^dnat ip6? to numgen random mod (\d+) map \{ ([^}]*) \}/,
    ([, count = '', map = ''], around) =>
      `one of ${count} endpoints by chance (${percent(1 / Number(count))} each): ${targets(map, around)}`,
  ],
  [
    /^dnat ip6? to ip6? daddr \. \w+ dport \. numgen random mod (\d+) map @(\S+)/,
    ([, count = '', map = '']) =>
      count === '1'
        ? `the first endpoint that map ${map} has for destination and port`
        : `one of ${count} places by chance, looked up by destination, port and its number in map ${map}; goes on where that is empty`,
  ],
  [
    /^dnat (?:ip6? )?to (\S+)/,
    ([, to = ''], around) => `the destination becomes ${endpointWords(to, around)}`,
  ],
  [
    /^numgen random mod (\d+) vmap \{ [^}]* \}/,
    ([, count = '']) => `one of ${count} endpoints by chance (${percent(1 / Number(count))} each)`,
  ],
  [
    /^masquerade(?: fully-random)?/,
    () => 'the source becomes an address of this node, so that the answer comes back here',
  ],
  [/^(?:goto|jump) (\S+)/, ([, chain = '']) => `go to chain ${chain}: ${chainWords(chain)}`],
  [/^reject(?: with \S+(?: \S+)*?)?(?= comment|$)/, () => 'refused at once, the sender is told'],
  [/^drop/, () => 'thrown away, the sender hears nothing'],
  [/^accept/, () => 'let through'],
  [/^return/, () => 'back to where the chain was called from'],
  [/^counter/, () => 'counted'],
  [/^comment "([^"]*)"/, ([, text = '']) => `"${text}"`],
]

function targets(map: string, around: Surroundings): string {
  return map
    .split(', ')
    .map((entry) => entry.replace(/^\d+ : /, '').replace(' . ', ':'))
    .map((endpoint) => endpointWords(endpoint, around))
    .join(', ')
}

/** Undefined when a part of the rule is not known: better no words than wrong ones. */
function ruleWords(content: string, around: Surroundings): string | undefined {
  const words: string[] = []
  let rest = content
  while (rest !== '') {
    const found = phrases.flatMap(([pattern, say]) => {
      const match = pattern.exec(rest)
      return match ? [{ length: match[0].length, words: say(match, around) }] : []
    })[0]
    if (!found) return undefined
    words.push(found.words)
    rest = rest.slice(found.length).trimStart()
  }
  return words.join(', ')
}
