import { bitsOf, cidrContains, formatIp, hostPort, isLoopback, parseIp } from '../../state/ip.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { Packet } from './packet.js'
import { protocols, someOf, type Protocol } from '../../state/names.js'

/** A question for `explain`: the way of a connection from a sender to a target. */
export interface Question {
  readonly state: DesiredState
  /** The Service of the target; undefined if the target is not an address of a Service. */
  readonly service: DesiredService | undefined
  readonly packet: Packet
  /** The sender, in words. */
  readonly sender: string
}

interface Asked {
  /** `namespace/name[:port]`, `name[:port]`, or `IP:PORT`. */
  readonly target: string
  /** `pod`, `node`, `outside`, or an address. */
  readonly from: string
  readonly protocol: Protocol | undefined
}

/** Parses a question. Returns a message if that fails. */
export function understand(asked: Asked, states: readonly DesiredState[]): Question | string {
  const found = findTarget(asked, states)
  if (typeof found === 'string') return found
  const { state, service, destination, port } = found
  const sender = senderOf(asked.from, state)
  if (!sender) {
    return `--from: ${JSON.stringify(asked.from)} is not pod, node, outside or an ${state.family} address`
  }
  const packet: Packet = {
    family: state.family,
    protocol: asked.protocol ?? service?.protocol ?? 'TCP',
    source: sender.source,
    destination,
    port,
    inInterface: sender.inInterface,
    isSocketHere: sender.isHere,
    mark: 0,
    isDnated: false,
    isMasqueraded: false,
  }
  return { state, service, packet, sender: `${sender.words} (${sender.source})` }
}

interface Target {
  readonly state: DesiredState
  readonly service: DesiredService | undefined
  readonly destination: string
  readonly port: number
}

function findTarget(asked: Asked, states: readonly DesiredState[]): Target | string {
  const match = /^(?:\[([^\]]+)\]|([^:/]+)):(\d{1,5})$/.exec(asked.target)
  const ip = parseIp(match?.[1] ?? match?.[2] ?? '')
  if (ip) {
    const port = Number(match?.[3])
    if (port < 1 || port > 65535) return `${asked.target}: the port is not a number from 1 to 65535`
    const state = states.find(({ family }) => family === ip.family)
    if (!state) return `${asked.target}: ${ip.family} is not selected; see --family`
    const service = serviceAt(state, ip.text, port, asked.protocol)
    return { state, service, destination: ip.text, port }
  }
  const alone = parseIp(asked.target.replace(/^\[(.*)\]$/, '$1'))
  if (alone) {
    return `${asked.target} is an address without a port; write both, such as ${hostPort(alone.text, 80)}`
  }
  for (const state of fromSender(states, asked.from)) {
    const wanted = asked.target.includes('/') ? asked.target : `default/${asked.target}`
    const services = [...state.services.values()].filter(
      ({ protocol }) => (asked.protocol ?? protocol) === protocol,
    )
    const named = services.filter((each) => isNamed(each, wanted))
    // A name may be a number, too.
    const meant = named.length > 0 ? named : services.filter((each) => isNumbered(each, wanted))
    const [service] = meant.sort(byUsualness)
    if (service) return { state, service, destination: service.clusterIp, port: service.port }
  }
  return noSuchPort(asked, states)
}

/** A Service of both families is asked in that of the sender's address. */
function fromSender(states: readonly DesiredState[], from: string): readonly DesiredState[] {
  const family = parseIp(from)?.family
  const isOf = (state: DesiredState) => state.family === family
  return [...states.filter(isOf), ...states.filter((state) => !isOf(state))]
}

function noSuchPort({ target, protocol }: Asked, states: readonly DesiredState[]): string {
  const known = states
    .flatMap((state) => [...state.services.values()])
    .filter((each) => (protocol ?? each.protocol) === each.protocol)
    .map((each) => each.portName)
  const what = protocol === undefined ? 'Service port' : `Service port of ${protocol}`
  const others = known.length > 0 ? likeFirst(target, [...new Set(known)].sort()) : 'none'
  return `there is no ${what} ${JSON.stringify(target)}; there are: ${others}`
}

const namesShown = 20

/** Names with the wanted one in them stand first: it may be in another namespace. */
function likeFirst(target: string, names: readonly string[]): string {
  const [wanted = ''] = target.slice(target.indexOf('/') + 1).split(':')
  const isLike = (name: string) => name.slice(name.indexOf('/')).includes(wanted)
  const sorted = [...names.filter(isLike), ...names.filter((name) => !isLike(name))]
  return someOf(sorted, namesShown)
}

/**
 * Orders service ports, to choose one where several are meant. A state does not keep the order of
 * the object.
 */
const byUsualness = (one: DesiredService, other: DesiredService) =>
  byProtocol(one, other) || one.port - other.port

/** The key is the name in the log and in `top`. */
const isNamed = ({ name, portName, key }: DesiredService, wanted: string) =>
  [key, portName, `${name.namespace}/${name.name}`].includes(wanted)

const isNumbered = ({ name, port }: DesiredService, wanted: string) =>
  wanted === `${name.namespace}/${name.name}:${port}`

/** The service port that gets the connections to an address. */
export function serviceAt(
  state: DesiredState,
  ip: string,
  port: number,
  protocol: Protocol | undefined,
): DesiredService | undefined {
  const rankOf = (service: DesiredService) =>
    rankAt(service, service.port === port && hasAddress(service, ip))
  const [first] = [...state.services.values()]
    .filter((each) => answersAt(each, state, ip, port))
    .filter((each) => (protocol ?? each.protocol) === each.protocol)
    .sort((one, other) => byProtocol(one, other) || (rankOf(one) < rankOf(other) ? -1 : 1))
  return first
}

/**
 * Of several service ports at one address, that of the smallest rank gets the connections: those
 * without endpoints come last, the kernel looks for addresses of Services before node ports, and of
 * equal requests the first key counts.
 */
export function rankAt({ key, hasAnyEndpoints }: DesiredService, isOwnAddress: boolean): string {
  return `${Number(!hasAnyEndpoints)}${Number(!isOwnAddress)} ${key}`
}

const byProtocol = (one: DesiredService, other: DesiredService) =>
  protocols.indexOf(one.protocol) - protocols.indexOf(other.protocol)

/** Whether a service port answers at an address of its own, or at a node port here. */
export function answersAt(
  service: DesiredService,
  state: DesiredState,
  ip: string,
  port: number,
): boolean {
  // The port first: there may be many Services and endpoints to compare.
  if (service.port === port && hasAddress(service, ip)) return true
  const answering = ip.startsWith('127.') ? '127.0.0.1' : ip
  return service.nodePort === port && state.node.nodePorts.addresses.includes(answering)
}

export function hasAddress(
  { clusterIp, externalIps, loadBalancerIps }: DesiredService,
  ip: string,
): boolean {
  return clusterIp === ip || externalIps.includes(ip) || loadBalancerIps.includes(ip)
}

interface Sender {
  readonly words: string
  readonly source: string
  readonly inInterface: string | undefined
  readonly isHere: boolean
}

/** Addresses for documentation, which no host has. */
const outsiders = { IPv4: '203.0.113.250', IPv6: '2001:db8::250' } as const

function senderOf(from: string, state: DesiredState): Sender | undefined {
  const { family, node } = state
  const pods = node.localTraffic
  const podInterface =
    pods.by === 'interface'
      ? pods.name
      : pods.by === 'interface-prefix'
        ? `${pods.prefix}0`
        : 'cbr0'
  const here = sender('this node', undefined, true)
  const podHere = sender('a pod of this node', podInterface, true)
  const outside = sender('a client outside', 'eth0', false)
  if (from === 'node') return here(node.primaryIp ?? (family === 'IPv4' ? '127.0.0.1' : '::1'))
  if (from === 'outside') return outside(outsiders[family])
  const ranges = pods.by === 'cidrs' ? pods.cidrs : []
  if (from === 'pod') {
    const [range] = ranges
    // An address near the end of the range, because no example has endpoints there.
    const offset = range ? (1n << BigInt(bitsOf(family) - range.prefix)) - 6n : 0n
    return podHere(range ? formatIp(family, range.network + offset) : outsiders[family])
  }
  const ip = parseIp(from)
  if (ip?.family !== family) return undefined
  if (node.localAddresses.includes(ip.text) || isLoopback(ip)) return here(ip.text)
  return ranges.some((range) => cidrContains(range, ip)) ? podHere(ip.text) : outside(ip.text)
}

const sender =
  (words: string, inInterface: string | undefined, isHere: boolean) =>
  (source: string): Sender => ({ words, source, inInterface, isHere })
