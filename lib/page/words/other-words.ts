import { counted } from '../../state/names.js'
import { endpointWords, fixedOf, serviceOf } from './words.js'
import type { LineWords, Surroundings } from './words.js'

const listener =
  /^listen (\w+) (\S+) for (\S+) \((cluster|local)(?:, ([a-z-]+))?(?:, affinity (\d+) s)?\): (.*)$/

/** Listeners of userspace mode, as `render` prints them. */
export function listenerWords(line: string, around: Surroundings): LineWords | undefined {
  const match = listener.exec(line)
  if (!match) return undefined
  const [, protocol = '', address = '', portName = '', list, ...more] = match
  const [balance = '', affinity, endpoints = ''] = more
  const isInTurn = balance === ''
  const isEmpty = endpoints === 'no endpoints'
  const whom = isEmpty
    ? 'no endpoint, because none is ready'
    : endpoints
        .split(' ')
        .map((each) => {
          const [key = '', weight] = each.split('*')
          const words = endpointWords(key, around)
          return weight === undefined ? words : `${words} (weight ${weight})`
        })
        .join(isInTurn ? ', then ' : ', ')
  const stays =
    affinity === undefined
      ? ''
      : `; a client that came in the last ${affinity} s gets the same again`
  const only = list === 'local' ? ', only those on this node' : ''
  return {
    words: `kube-proxy itself listens at ${address} (${protocol}) and connects to ${whom}, ${isInTurn ? 'in turn' : balance}${only}${stays}`,
    object: serviceOf(
      portName,
      isEmpty ? 'no ready endpoint in its EndpointSlices' : 'its EndpointSlices',
    ),
  }
}

const ipsets: Readonly<Record<string, readonly [words: string, field: string]>> = {
  'KUBE-LOOP-BACK': ['pods that may reach themselves through their Service', 'its EndpointSlices'],
  'KUBE-CLUSTER-IP': ['ClusterIPs with their ports', 'spec.clusterIP'],
  'KUBE-EXTERNAL-IP': ['external addresses with their ports', 'spec.externalIPs'],
  'KUBE-EXTERNAL-IP-LOCAL': ['external addresses of policy Local', 'spec.externalTrafficPolicy'],
  'KUBE-LOAD-BALANCER': ['load-balancer addresses', 'status.loadBalancer.ingress'],
  'KUBE-LOAD-BALANCER-FW': [
    'load balancers that only some clients may use',
    'spec.loadBalancerSourceRanges',
  ],
  'KUBE-LOAD-BALANCER-LOCAL': ['load balancers of policy Local', 'spec.externalTrafficPolicy'],
  'KUBE-LOAD-BALANCER-SOURCE-IP': [
    'load-balancer addresses that may send to themselves',
    'spec.loadBalancerSourceRanges',
  ],
  'KUBE-LOAD-BALANCER-SOURCE-CIDR': [
    'source ranges of load balancers',
    'spec.loadBalancerSourceRanges',
  ],
  'KUBE-HEALTH-CHECK-NODE-PORT': [
    'ports for health checks by load balancers',
    'spec.healthCheckNodePort',
  ],
  'KUBE-IPVS-IPS': ['every address on kube-ipvs0', 'its addresses'],
  'KUBE-NO-ENDPOINTS': ['addresses without endpoints, told of with --flows', 'its EndpointSlices'],
}

function ipsetOf(fullName: string): readonly [words: string, field: string] | undefined {
  // The sets of IPv6 have the same names with a 6, cut to the length that the kernel allows.
  const name = fullName.replace(/^KUBE-6-/, 'KUBE-').replace(/-SOURCE-CID$/, '-SOURCE-CIDR')
  if (name.startsWith('KUBE-NODE-PORT-LOCAL-'))
    return ['node ports of policy Local', 'spec.externalTrafficPolicy']
  if (name.startsWith('KUBE-NODE-PORT-')) return ['node ports', 'spec.ports[].nodePort']
  return ipsets[name]
}

const schedulers: Readonly<Record<string, string>> = {
  rr: 'one after the other (round robin)',
  wrr: 'one after the other, by weight',
  lc: 'the endpoint with the fewest connections',
  wlc: 'the endpoint with the fewest connections, by weight',
  sh: 'by the address of the client (source hashing)',
  dh: 'by the destination (destination hashing)',
  sed: 'the endpoint with the shortest expected delay',
  nq: 'an idle endpoint, else the one with the shortest expected delay',
  mh: 'by the client; few clients move when endpoints change',
}

/** Explains what ipvs mode has besides its iptables rules: sets, virtual servers, addresses. */
export function ipvsWords(
  lines: readonly string[],
  around: Surroundings,
): (line: string) => LineWords | undefined {
  const counts = new Map<string, number>()
  for (const line of lines) {
    const server = /^-a (-[tu]|--sctp-service) (\S+) /.exec(line)?.[2]
    if (server !== undefined) counts.set(server, (counts.get(server) ?? 0) + 1)
  }
  return (line) => {
    const [verb, set = '', entry = ''] = line.split(' ')
    if (verb === 'create' || verb === 'add') {
      const [meaning, field] = ipsetOf(set) ?? []
      if (meaning === undefined) return undefined
      return verb === 'create'
        ? { words: `makes the set ${set}: ${meaning}`, object: fixedOf('ipvs') }
        : {
            words: `${entry} is in set ${set}: ${meaning}`,
            object: `${ownerWords(around)}: ${field}`,
          }
    }
    return serverWords(line, counts, around) ?? addressWords(line, around)
  }
}

function serverWords(
  line: string,
  counts: ReadonlyMap<string, number>,
  around: Surroundings,
): LineWords | undefined {
  const server = /^-A (-[tu]|--sctp-service) (\S+) -s (\w+)(.*)$/.exec(line)
  if (server) {
    const [, , address = '', scheduler = '', more = ''] = server
    const stays = /-p (\d+)/.exec(more)?.[1]
    const keeps = stays === undefined ? '' : `; a client keeps its endpoint for ${stays} s`
    const count = counts.get(address) ?? 0
    return {
      words: `virtual server ${address}, ${counted(count, 'endpoint')}: ${schedulers[scheduler] ?? scheduler}${keeps}`,
      object: `${ownerWords(around, address)}${stays === undefined ? '' : ': spec.sessionAffinity'}`,
    }
  }
  const real = /^-a (-[tu]|--sctp-service) (\S+) -r (\S+) -m -w (\d+)/.exec(line)
  if (!real) return undefined
  const [, , address = '', endpoint = '', weight = ''] = real
  return {
    words: `${endpointWords(endpoint, around)} is one of the servers behind ${address}, with weight ${weight}; -m: by rewriting addresses`,
    object: `${ownerWords(around, address)}: ${endpoint} in its EndpointSlice`,
  }
}

function addressWords(line: string, around: Surroundings): LineWords | undefined {
  const address = /^ip (?:-6 )?address add (\S+?)\/\d+ dev kube-ipvs0$/.exec(line)?.[1]
  return address === undefined
    ? undefined
    : {
        words: `${address} is put on this node's interface kube-ipvs0, so that the kernel accepts packets for it`,
        object: ownerWords(around, address),
      }
}

/** The Service of a line, by name if that is known. */
function ownerWords({ owner }: Surroundings, address = ''): string {
  if (owner !== undefined) return `Service ${owner}`
  return address === '' ? 'a Service' : `the Service at ${address}`
}

/** What ebpf mode does at sockets. The text before the protocol names the Service port. */
const socketLine =
  /^sockets IPv\d: (?:node address (.+)|frontend (.+) -> (\S+)\/\w+.*|service (\S+)\/\w+.*?: (.+))$/

export function socketWords(line: string): LineWords | undefined {
  const match = socketLine.exec(line)
  if (!match) return undefined
  const [, address, frontend = '', named, id = '', what = ''] = match
  if (address !== undefined)
    return { words: `node ports answer sockets at ${address}`, object: fixedOf('ebpf') }
  const words =
    named === undefined
      ? `at sockets, before there is a packet: ${what}`
      : `the programs at sockets know ${frontend} as an address of this Service`
  return { words, object: serviceOf(named ?? id) }
}
