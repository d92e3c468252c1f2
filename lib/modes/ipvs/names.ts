import type { IpSet } from '../../kernel/ipset.js'
import { schedulerFlag } from '../../kernel/ipvs/messages.js'
import type { Balance } from '../../state/balance.js'
import type { IpFamily } from '../../state/ip.js'

/** The device that holds every Service address, so that the kernel takes them for its own (IP02). */
export const deviceName = 'kube-ipvs0'

/** Chains, by upstream's names (IP09). */
export const chains = {
  services: 'KUBE-SERVICES',
  postrouting: 'KUBE-POSTROUTING',
  markMasquerade: 'KUBE-MARK-MASQ',
  nodePort: 'KUBE-NODE-PORT',
  loadBalancer: 'KUBE-LOAD-BALANCER',
  forward: 'KUBE-FORWARD',
  firewall: 'KUBE-PROXY-FIREWALL',
  sourceRanges: 'KUBE-SOURCE-RANGES-FIREWALL',
  /** Shields the host's own ports from being reached by Service addresses (IP22). */
  shield: 'KUBE-IPVS-FILTER',
  /** Source ranges for what the node itself sends (IP23). */
  outFilter: 'KUBE-IPVS-OUT-FILTER',
  /** Ours: tells the proxy of what IPVS is going to refuse. */
  refused: 'KUBE-IPVS-REFUSED',
} as const

const address = 'hash:ip'
const addressPort = 'hash:ip,port'
const addressPortAddress = 'hash:ip,port,ip'
const addressPortNet = 'hash:ip,port,net'
const port = 'bitmap:port'

/** Sets by upstream's names, with their types (IP10-IP18). */
const setTypes = {
  'KUBE-LOOP-BACK': addressPortAddress,
  'KUBE-CLUSTER-IP': addressPort,
  'KUBE-EXTERNAL-IP': addressPort,
  'KUBE-EXTERNAL-IP-LOCAL': addressPort,
  'KUBE-LOAD-BALANCER': addressPort,
  'KUBE-LOAD-BALANCER-FW': addressPort,
  'KUBE-LOAD-BALANCER-LOCAL': addressPort,
  'KUBE-LOAD-BALANCER-SOURCE-IP': addressPortAddress,
  'KUBE-LOAD-BALANCER-SOURCE-CIDR': addressPortNet,
  'KUBE-NODE-PORT-TCP': port,
  'KUBE-NODE-PORT-LOCAL-TCP': port,
  'KUBE-NODE-PORT-UDP': port,
  'KUBE-NODE-PORT-LOCAL-UDP': port,
  'KUBE-NODE-PORT-SCTP-HASH': addressPort,
  'KUBE-NODE-PORT-LOCAL-SCTP-HASH': addressPort,
  'KUBE-HEALTH-CHECK-NODE-PORT': port,
  'KUBE-IPVS-IPS': address,
  'KUBE-NO-ENDPOINTS': addressPort,
} as const

export type SetName = keyof typeof setTypes

export const setNames = Object.keys(setTypes).filter((name): name is SetName => name in setTypes)

/** Sets of single addresses with ports: they tell which virtual servers are ours. */
export const frontendSets: readonly SetName[] = [
  'KUBE-CLUSTER-IP',
  'KUBE-EXTERNAL-IP',
  'KUBE-EXTERNAL-IP-LOCAL',
  'KUBE-LOAD-BALANCER',
  'KUBE-NODE-PORT-SCTP-HASH',
  'KUBE-NODE-PORT-LOCAL-SCTP-HASH',
]

export const nodePortSets = {
  TCP: ['KUBE-NODE-PORT-TCP', 'KUBE-NODE-PORT-LOCAL-TCP'],
  UDP: ['KUBE-NODE-PORT-UDP', 'KUBE-NODE-PORT-LOCAL-UDP'],
} as const

const nameLimit = 31

/** Sixteen times upstream's hard cap (IP20); memory is taken only for what is in. */
const maxMembers = 1_048_576

/** The name in the kernel: IPv6 sets live beside those of IPv4 (IP19). */
export function setNameOf(family: IpFamily, name: SetName): string {
  return family === 'IPv4' ? name : name.replace('KUBE-', 'KUBE-6-').slice(0, nameLimit)
}

export function setOf(family: IpFamily, name: SetName): IpSet {
  const type = setTypes[name]
  return {
    name: setNameOf(family, name),
    type,
    options:
      type === port
        ? 'range 0-65535'
        : `family ${family === 'IPv4' ? 'inet' : 'inet6'} maxelem ${maxMembers}`,
  }
}

/** The kernel's schedulers; each is a module `ip_vs_NAME` (IP04). */
export const schedulers: readonly string[] = [
  'rr',
  'wrr',
  'lc',
  'wlc',
  'fo',
  'ovf',
  'lblc',
  'lblcr',
  'dh',
  'sh',
  'mh',
  'sed',
  'nq',
  'twos',
]

/** This one knows no weights: it would send its share of clients into a server of weight 0. */
export const weightless = 'dh'

/**
 * The two bits some schedulers read. `mh` as upstream (IP03): the client's port counts, and dead
 * servers are passed over. `sh` passes them over too, or a draining one would refuse its clients.
 */
export function schedulerFlagsOf(scheduler: string): number {
  if (scheduler === 'mh') return schedulerFlag.port | schedulerFlag.fallback
  return scheduler === 'sh' ? schedulerFlag.fallback : 0
}

/**
 * The scheduler for a word of `kube-proxy-ts/balance`. The state names no word that has none. With
 * `mh` only the address of the client counts, as in other modes.
 */
export const schedulerFor: Readonly<Partial<Record<Balance, SchedulerChoice>>> = {
  'round-robin': { scheduler: 'rr', schedulerFlags: 0 },
  'least-connections': { scheduler: 'lc', schedulerFlags: 0 },
  weighted: { scheduler: 'wrr', schedulerFlags: 0 },
  'source-hash': { scheduler: 'sh', schedulerFlags: schedulerFlag.fallback },
  maglev: { scheduler: 'mh', schedulerFlags: schedulerFlag.fallback },
  first: { scheduler: 'fo', schedulerFlags: 0 },
}

export interface SchedulerChoice {
  readonly scheduler: string
  readonly schedulerFlags: number
}

/** The annotation `kube-proxy-ts/ipvs-scheduler` of a Service. */
export const schedulerOption = 'ipvs-scheduler'
