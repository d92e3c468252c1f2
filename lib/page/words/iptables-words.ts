import { commentOf, conditionsOf, parseRule, type RuleOption } from '../../kernel/iptables.js'
import { conditionWords } from './iptables-conditions.js'
import { endpointWords, fixedOf, serviceOf } from './words.js'
import type { LineWords, Surroundings } from './words.js'

/** A line `-A CHAIN … -j TARGET …` taken apart. */
interface RuleLine {
  readonly chain: string
  readonly conditions: readonly RuleOption[]
  readonly comment: string
  readonly target: string
  readonly targetArgs: readonly string[]
}

/** Explains the lines for `iptables-restore`. Other lines tell the owner of a chain. */
export function iptablesWords(
  mode: string,
  lines: readonly string[],
  surroundings: Surroundings,
): (line: string) => LineWords | undefined {
  const owners = ownersOf(lines)
  const ownerOf = (chain: string) => owners.get(hashOf(chain) ?? '')
  return (line) => {
    const table = /^\*(\w+)$/.exec(line)?.[1]
    if (table !== undefined) return fixed(mode, tableWords[table] ?? `table ${table}`)
    if (line === 'COMMIT')
      return fixed(mode, 'the end of this table: the kernel applies all its lines at once')
    const declared = /^:(\S+) /.exec(line)?.[1]
    if (declared !== undefined) {
      const portName = ownerOf(declared)
      const words = `makes chain ${declared}: ${chainWords(declared)}`
      return portName === undefined ? fixed(mode, words) : { words, object: serviceOf(portName) }
    }
    const rule = parseLine(line)
    if (!rule) return undefined
    const words = sentence(rule, surroundings)
    if (words === undefined) return undefined
    const portName = portNameIn(rule.comment) ?? ownerOf(rule.chain)
    return {
      words,
      object: portName === undefined ? fixedOf(mode) : serviceOf(portName, fieldOf(rule)),
    }
  }
}

function fixed(mode: string, words: string): LineWords {
  return { words, object: fixedOf(mode) }
}

const tableWords: Readonly<Record<string, string>> = {
  filter: 'table filter: what may pass',
  nat: 'table nat: where addresses are rewritten, once for each connection',
  mangle: 'table mangle: before the other tables see a packet',
}

/**
 * The Service of each chain, by the hash in the name of the chain. Comments of rules in the chain,
 * or of rules that jump there, have the port name.
 */
function ownersOf(lines: readonly string[]): ReadonlyMap<string, string> {
  const owners = new Map<string, string>()
  for (const line of lines) {
    const rule = parseLine(line)
    const portName = rule && portNameIn(rule.comment)
    if (!rule || portName === undefined) continue
    for (const chain of [rule.chain, rule.target]) {
      const hash = hashOf(chain)
      if (hash !== undefined && !owners.has(hash)) owners.set(hash, portName)
    }
  }
  return owners
}

function hashOf(chain: string): string | undefined {
  return /^KUBE-(?:SVC|SVL|EXT|FW|SEP)-([A-Z2-7]{16})$/.exec(chain)?.[1]
}

/** Comments of a Service begin with, or contain, `namespace/name:port`. */
function portNameIn(comment: string): string | undefined {
  return /(?:^| )([a-z0-9][-a-z0-9.]*\/[a-z0-9][-a-z0-9.]*(?::[-a-z0-9]+)?)(?= |$)/.exec(
    comment,
  )?.[1]
}

function parseLine(line: string): RuleLine | undefined {
  const [, verb, chain = '', text = ''] = /^-([AI]) (\S+) ?(.*)$/.exec(line) ?? []
  if (verb === undefined) return undefined
  const spec = parseRule(text)
  return {
    chain,
    conditions: conditionsOf(spec),
    comment: commentOf(spec),
    target: spec.jump ?? '',
    targetArgs: spec.jumpArgs ?? [],
  }
}

function sentence(rule: RuleLine, surroundings: Surroundings): string | undefined {
  const conditions = conditionWords(rule.conditions)
  if (conditions === undefined) return undefined
  const whom = conditions === '' ? 'everything' : conditions
  const hook = rule.chain.startsWith('KUBE-') ? '' : `at ${hookWords[rule.chain] ?? rule.chain}, `
  return `${hook}${whom}: ${targetWords(rule, surroundings)}`
}

const hookWords: Readonly<Record<string, string>> = {
  PREROUTING: 'PREROUTING (a packet comes in, before routing)',
  INPUT: 'INPUT (a packet is for this node)',
  FORWARD: 'FORWARD (a packet passes through this node)',
  OUTPUT: 'OUTPUT (a process of this node sends)',
  POSTROUTING: 'POSTROUTING (a packet leaves)',
}

function targetWords(rule: RuleLine, surroundings: Surroundings): string {
  const { target, targetArgs, comment } = rule
  const [option = '', value = ''] = targetArgs
  switch (target) {
    case 'REJECT':
      return option === '--reject-with'
        ? `refused at once, with ${value}`
        : `refused at once, the sender is told${/no endpoints/.test(comment) ? '; there is no endpoint' : ''}`
    case 'MARK':
      return option === '--xor-mark'
        ? 'the mark is not needed any more and is removed'
        : 'marked, so that POSTROUTING gives it an address of this node as source'
    case 'DNAT':
      return value.startsWith(':') || value.endsWith('PROXY-PORT') || value.endsWith('-LOCAL')
        ? `handed to the port of kube-proxy at ${value}`
        : `the destination becomes ${endpointWords(value, surroundings)}`
    case 'REDIRECT':
      return `handed to the port ${value} of kube-proxy on this node`
    default:
      return plainTargets[target] ?? `go to chain ${target}: ${chainWords(target)}`
  }
}

/** Targets that mean the same whatever their arguments are. */
const plainTargets: Readonly<Record<string, string>> = {
  '': 'only counted',
  ACCEPT: 'let through',
  RETURN: 'back to the calling chain',
  DROP: 'dropped, the sender gets no answer',
  NFLOG: 'the proxy is told, which counts it',
  MASQUERADE: 'the source becomes an address of this node, so that the answer comes back here',
}

const knownChains: Readonly<Record<string, string>> = {
  'KUBE-SERVICES': 'which Service is it for?',
  'KUBE-NODEPORTS': 'which node port is it for?',
  'KUBE-EXTERNAL-SERVICES': 'external addresses without endpoints',
  'KUBE-MARK-MASQ': 'marks packets that get an address of this node as source',
  'KUBE-POSTROUTING': 'gives marked packets an address of this node as source',
  'KUBE-FORWARD': 'lets traffic of Services pass',
  'KUBE-PROXY-FIREWALL': 'load balancers that only some clients may use',
  'KUBE-SVC-REFUSEDANDLOGGED': 'refuses, and tells the sender and the proxy',
  'KUBE-SVC-DROPPEDANDLOGGED': 'drops what wants an endpoint on this node, and tells the proxy',
  'KUBE-SVC-BLOCKEDANDLOGGED': 'drops what is in no source range, and tells the proxy',
  'KUBE-PROXY-CANARY': 'empty; if it is missing, another program has flushed the rules',
  'KUBE-FIREWALL': 'protects 127.0.0.0/8 from other machines',
  'KUBE-PORTALS-CONTAINER': 'ClusterIPs, for packets from pods and from outside',
  'KUBE-PORTALS-HOST': 'ClusterIPs, for packets of this node itself',
  'KUBE-NODEPORT-CONTAINER': 'node ports, for packets from pods and from outside',
  'KUBE-NODEPORT-HOST': 'node ports, for packets of this node itself',
  'KUBE-NODEPORT-NON-LOCAL': 'the ports of health checks',
  'KUBE-PORTALS-REFUSE': 'Services without endpoints',
  'KUBE-PORTALS-REFUSED': 'refuses, and tells the sender',
  'KUBE-PORTALS-DROPPED': 'drops what wants an endpoint on this node',
  'KUBE-PORTALS-BLOCKED': 'drops what is in no source range',
  'KUBE-PORTALS-DIRECT': 'the ports of the proxy',
  'KUBE-PORTALS-LISTENER': 'the proxy takes connections that were redirected, and no others',
  'KUBE-NODE-PORT': 'which node port is it for?',
  'KUBE-LOAD-BALANCER': 'load-balancer addresses: masquerade, unless the policy is Local',
  'KUBE-SOURCE-RANGES-FIREWALL': 'who is in the source ranges of its load balancer?',
  'KUBE-IPVS-FILTER': 'what may reach the addresses of kube-ipvs0',
  'KUBE-IPVS-REFUSED': 'tells the proxy of what IPVS is going to refuse',
  'KUBE-IPVS-OUT-FILTER': 'source ranges, for packets of this node itself',
}

const chainsOfServices: Readonly<Record<string, string>> = {
  SVC: 'the endpoints of this Service, one by chance',
  SVL: 'the endpoints of this Service on this node, one by chance',
  EXT: 'traffic that came to an external address or node port',
  FW: 'who may use the load balancer of this Service?',
  SEP: 'one endpoint, whose clients are remembered',
}

function chainWords(chain: string): string {
  const [, kind = ''] = /^KUBE-([A-Z]+)-/.exec(chain) ?? []
  return knownChains[chain] ?? chainsOfServices[kind] ?? 'a chain of its own'
}

/** The field of the Service, or the EndpointSlice entry, that made the rule. */
function fieldOf({ chain, comment, conditions, target }: RuleLine): string {
  const has = (option: string) => conditions.some(({ name }) => name === option)
  const endpoint = / -> (\S+)$/.exec(comment)?.[1]
  if (has('--rcheck') || has('--set')) return 'spec.sessionAffinity'
  if (endpoint !== undefined) return `${endpoint} in its EndpointSlice`
  if (/no endpoints/.test(comment)) return 'no ready endpoint in its EndpointSlices'
  if (/health check/.test(comment)) return 'spec.healthCheckNodePort'
  if (chain.startsWith('KUBE-FW-') || chain === 'KUBE-PROXY-FIREWALL') {
    return 'spec.loadBalancerSourceRanges'
  }
  if (/NODE-?PORT/.test(chain)) return 'spec.ports[].nodePort'
  if (/external IP$/.test(comment)) return 'spec.externalIPs'
  if (/loadbalancer IP$/.test(comment)) return 'status.loadBalancer.ingress'
  if (/external destinations$/.test(comment) || chain.startsWith('KUBE-EXT-')) {
    return 'spec.externalTrafficPolicy'
  }
  if (target === 'ACCEPT') return ''
  return /cluster IP$/.test(comment) ? 'spec.clusterIP' : ''
}
