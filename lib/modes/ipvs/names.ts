import type { IpSet } from '../../kernel/ipset.js'
import { schedulerFlag } from '../../kernel/ipvs/messages.js'
import type { Balance } from '../../state/balance.js'
import type { IpFamily } from '../../state/ip.js'

/** The device with all Service addresses, which makes them local addresses of the node (IP02). */
export const deviceName = 'kube-ipvs0'

/** The chains, with upstream's names (IP09). */
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
  /** Source ranges for the node's own packets (IP23). */
  outFilter: 'KUBE-IPVS-OUT-FILTER',
  /** Ours: tells the proxy of what IPVS is going to refuse. */
  refused: 'KUBE-IPVS-REFUSED',
} as const

const address = 'hash:ip'
const addressPort = 'hash:ip,port'
const addressPortAddress = 'hash:ip,port,ip'
const addressPortNet = 'hash:ip,port,net'
const port = 'bitmap:port'

/** The sets, with upstream's names, and their types (IP10-IP18). */
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

export const setNames: SetName[] = Object.keys(setTypes).filter(
  (name): name is SetName => name in setTypes,
)

/** The sets of addresses with ports. They tell which virtual servers are ours. */
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

/**
 * The kernel's largest limit (IP20). A member that does not fit would stop the syncs of all Services,
 * and a set takes memory only for the members that it has.
 */
const maxMembers = 2 ** 32 - 1

/** The name in the kernel, where both families have sets side by side (IP19). */
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

/** This scheduler knows no weights: a server of weight 0 would still get clients. */
export const weightless = 'dh'

/**
 * The two flags that some schedulers read. `mh` is as upstream (IP03): the client's port counts,
 * and servers of weight 0 are passed over. `sh` passes them over, too, or a draining server would
 * refuse its clients.
 */
export function schedulerFlagsOf(scheduler: string): number {
  if (scheduler === 'mh') return schedulerFlag.port | schedulerFlag.fallback
  return scheduler === 'sh' ? schedulerFlag.fallback : 0
}

/**
 * The scheduler for each value of `kube-proxy-ts/balance` that this mode can do. With `mh` only the
 * address of the client counts, as in other modes.
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
