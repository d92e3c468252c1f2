import { hostPort } from '../../state/ip.js'
import { verdictText } from '../../kernel/nftables/text-statements.js'
import { chainWords, hookWords, owned, setWords, shared } from './nftables-names.js'
import { endpointWords, fixedOf, listed, percent, serviceOf } from './words.js'
import type { Draw, Element, Field, Rule, Statement, Verdict } from '../../kernel/nftables/model.js'
import type { PlanLine } from '../../modes/mode.js'
import type { LineWords, Surroundings } from './words.js'

/** Explains the commands that make an nftables ruleset. */
export function nftablesWords(around: Surroundings): (line: PlanLine) => LineWords | undefined {
  return ({ commands = [] }) => {
    const [command] = commands
    switch (command?.do) {
      case 'add-table':
        return {
          words: 'the one table that holds everything of kube-proxy',
          object: fixedOf('nftables'),
        }
      case 'add-set': {
        const { name, holds } = command.set
        const words = `makes the ${holds === 'keys' ? 'set' : 'map'} ${name}: ${setWords(name)}`
        return { words, object: ownerOf(name) }
      }
      case 'add-chain': {
        const { chain } = command
        const words = `makes chain ${chain.name}: ${hookWords(chain) ?? chainWords(chain.name)}`
        return { words, object: ownerOf(chain.name) }
      }
      case 'add-element': {
        const elements = commands.flatMap((one) => ('element' in one ? [one.element] : []))
        return {
          words: elementWords(command.element, elements, around),
          object: elementOwner(command.element, elements.length > 1, around),
        }
      }
      case 'add-rule':
        return {
          words: ruleWords(command.rule, around),
          object: ownerOf(command.chain, command.rule),
        }
      default:
        return undefined
    }
  }
}

function ownerOf(name: string, rule?: Rule): string {
  const [, kind, namespace, service, , port, ip, endpointPort] = owned.exec(name) ?? []
  if (namespace === undefined || service === undefined)
    return shared.test(name) ? 'every Service with only a ClusterIP' : fixedOf('nftables')
  const endpoint = ip === undefined ? undefined : `${ip}:${endpointPort}`
  const portName = `${namespace}/${service}${port === '' ? '' : `:${port}`}`
  return serviceOf(portName, fieldOf(kind ?? '', rule?.statements ?? [], endpoint))
}

function fieldOf(kind: string, statements: readonly Statement[], endpoint?: string): string {
  if (kind === 'affinity' || kind === 'clients' || statements.some(isAboutAffinity))
    return 'spec.sessionAffinity'
  if (endpoint !== undefined) return `${endpoint} in its EndpointSlice`
  if (kind === 'firewall') return 'spec.loadBalancerSourceRanges'
  if (kind === 'external' || kind === 'local') return 'spec.externalTrafficPolicy'
  return statements.some(isAboutEndpoints) ? 'its EndpointSlices' : ''
}

const isAboutAffinity = (statement: Statement) =>
  (statement.kind === 'member' || statement.kind === 'remember') &&
  statement.set.startsWith('affinity-')

const isAboutEndpoints = ({ kind }: Statement) =>
  kind === 'dnat' ||
  kind === 'dnat-by-map' ||
  kind === 'dnat-by-source' ||
  kind === 'random-verdict'

function elementWords(first: Element, elements: readonly Element[], around: Surroundings): string {
  const { set, verdict } = first
  if (set.holds === 'targets') {
    const entries = elements.map(({ key: [address, port, number], target }) => {
      const endpoint = target ? hostPort(target.ip, target.port) : ''
      return `${address} port ${port} number ${number} is ${endpointWords(endpoint, around)}`
    })
    return `in ${set.name} (${setWords(set.name)}): ${entries.join(', ')}`
  }
  const more = elements.length > 1 ? `, and ${elements.length - 1} more like it` : ''
  const then = verdict ? `: ${elementVerdict(verdict)}` : ''
  return `${first.key.join(' . ')} is in ${set.name} (${setWords(set.name)})${then}${more}`
}

function elementVerdict(verdict: Verdict): string {
  if (!('chain' in verdict)) return verdictText(verdict)
  return `go to chain ${verdict.chain}, ${chainWords(verdict.chain)}`
}

function elementOwner(
  { set: { name }, verdict, comment }: Element,
  isMany: boolean,
  { owner }: Surroundings,
): string {
  const field: Readonly<Record<string, string>> = {
    'cluster-ips': 'spec.clusterIP',
    'service-ips': 'spec.clusterIP, spec.externalIPs and status.loadBalancer',
    'service-nodeports': 'spec.ports[].nodePort',
    'firewall-ips': 'spec.loadBalancerSourceRanges',
    'no-endpoint-services': 'no ready endpoint in its EndpointSlices',
    'no-endpoint-nodeports': 'no ready endpoint in its EndpointSlices',
  }
  if (comment !== undefined) return serviceOf(comment, field[name])
  const chain = verdict && 'chain' in verdict ? verdict.chain : ''
  const [, , namespace, service, , port] = owned.exec(chain) ?? []
  if (namespace !== undefined && service !== undefined) {
    const portName = `${namespace}/${service}${port === '' ? '' : `:${port}`}`
    return `${serviceOf(portName, field[name])}${isMany ? ', and others' : ''}`
  }
  if (owner !== undefined) return serviceOf(owner, field[name] ?? 'its EndpointSlices')
  if (name.endsWith('-endpoints') || shared.test(name))
    return 'every EndpointSlice of Services with only a ClusterIP'
  if (name === 'cluster-ips') return 'every Service: spec.clusterIP'
  if (name === 'hairpin-connections') return 'every EndpointSlice: endpoints on this node'
  return name === 'nodeport-ips' ? 'the addresses of this node' : fixedOf('nftables')
}

function ruleWords({ statements, comment }: Rule, around: Surroundings): string {
  const words = statements.map((statement) => statementWords(statement, around))
  return [...words, ...(comment === undefined ? [] : [`"${comment}"`])].join(', ')
}

type Words = {
  readonly [Kind in Statement['kind']]: (
    statement: Extract<Statement, { readonly kind: Kind }>,
    around: Surroundings,
  ) => string
}

const wordsOf: Words = {
  address: ({ field, not, cidrs }) => {
    const ranges = cidrs.map(({ text }) => text).join(' or ')
    return `${not ? 'not ' : ''}${field === 'saddr' ? 'from' : 'to'} ${ranges}`
  },
  member: ({ set, fields }) => memberWords(set, fields),
  local: ({ field }) =>
    field === 'saddr' ? 'sent by this node itself' : 'for an address of this node',
  interface: ({ not, name, prefix }) =>
    `${not ? 'not ' : ''}coming in on ${name}${prefix ? '*' : ''}`,
  protocol: ({ protocol }) => protocol.toUpperCase(),
  connection: ({ is }) =>
    is === 'new' ? 'the first packet of a connection' : 'whose destination was rewritten',
  'mark-test': () => 'marked',
  'mark-change': ({ by }) =>
    by === 'xor'
      ? 'the mark is removed'
      : 'marked, so that its source becomes an address of this node',
  'verdict-map': ({ fields, map }) =>
    `looked up by ${fieldWords(fields)} in map ${map}: ${setWords(map)}`,
  remember: () => 'the client is remembered for this endpoint',
  log: () => 'the proxy is told, which counts it',
  'random-verdict': ({ verdicts, by }) => oneOf(verdicts, by),
  dnat: ({ targets, by }, around) => {
    const endpoints = targets.map(({ ip, port }) => endpointWords(hostPort(ip, port), around))
    return endpoints.length === 1
      ? `the destination becomes ${endpoints.join('')}`
      : `${oneOf(targets, by)}: ${[...new Set(endpoints)].join(', ')}`
  },
  'dnat-by-map': ({ map, choices }) =>
    choices === 1
      ? `the first endpoint that map ${map} has for destination and port`
      : `one of ${choices} places by chance, looked up by destination, port and its number in map ${map}; continues if that is empty`,
  'dnat-by-source': ({ map, places }) =>
    `the endpoint that map ${map} has for the client's address, as a number below ${places}`,
  masquerade: () =>
    'the source becomes an address of this node, so that the answer comes back here',
  reject: () => 'refused at once, the sender is told',
  verdict: ({ verdict }) => verdictWords(verdict),
}

function statementWords(statement: Statement, around: Surroundings): string {
  const words = wordsOf[statement.kind] as (of: Statement, around: Surroundings) => string
  return words(statement, around)
}

function verdictWords(verdict: Verdict): string {
  if (verdict.to === 'drop') return 'dropped, the sender gets no answer'
  if (verdict.to === 'return') return 'back to the calling chain'
  return `go to chain ${verdict.chain}: ${chainWords(verdict.chain)}`
}

function oneOf(all: readonly unknown[], by: Draw = 'chance'): string {
  const count = new Set(all.map((each) => JSON.stringify(each))).size
  switch (by) {
    case 'chance':
      return count === all.length
        ? `one of ${count} endpoints by chance (${percent(1 / count)} each)`
        : `one of ${count} endpoints by chance, by their weights`
    case 'turn':
      return `one of ${count} endpoints, in turn`
    case 'source':
      return `one of ${count} endpoints by a hash of the client's address`
  }
}

function memberWords(set: string, fields: readonly Field[]): string {
  if (set === 'hairpin-connections') return 'from a pod of this node to itself'
  if (set.startsWith('affinity-')) return 'from a client that this endpoint remembers'
  if (fields.length === 1) return `to one of ${set} (${setWords(set)})`
  return `${fieldWords(fields)} in ${set} (${setWords(set)})`
}

const fieldNames: Readonly<Record<Field, string>> = {
  saddr: 'source',
  daddr: 'destination',
  l4proto: 'protocol',
  dport: 'port',
}

function fieldWords(fields: readonly Field[]): string {
  return listed(fields.map((field) => fieldNames[field]))
}
