import type { ModeName } from '../../lib/config/config.js'
import { isOnNode } from '../../lib/lab/world/topology.js'
import type { Client, Target } from './case.js'
import type { Check } from './flows.js'
import type { CaseService } from './objects.js'

/** A kind of flow that a mode does not support, with the reason. */
export interface Skip {
  readonly reason: string
  readonly flows: (check: Check) => boolean
  /** The flow is checked with this expectation instead. */
  readonly instead?: Pick<Check, 'gets'> | Pick<Check, 'source' | 'bridgedSource'>
}

const anySource = { source: undefined, bridgedSource: undefined }

const hasRanges = ({ shorthand }: CaseService) => (shorthand.sourceRanges?.length ?? 0) > 0

const isVirtual = (target: Target) => target === 'load-balancer' || target === 'external'

const isInCluster = ({ place }: Client) => place !== 'outside'

const toLocalhost = ({ target }: Check) => target === 'localhost'

/** Ebpf mode translates at sockets of the node and its pods. The rest takes the packet path. */
const isTranslatedAtSocket = ({ client, protocol }: Check) =>
  (protocol === 'TCP' || protocol === 'UDP') && isOnNode(client.place)

/** Kernel modes change packets. Only a proxy can put bytes in front of a connection. */
const withoutHeader: Skip = {
  reason: 'only userspace mode writes PROXY headers',
  flows: ({ source }) => source === 'announced',
}

/** Only a kernel with SCTP makes such flows. */
const withoutProxiedSctp: Skip = {
  reason: 'userspace mode proxies TCP and UDP only',
  flows: ({ protocol }) => protocol === 'SCTP',
}

/**
 * What listeners on the addresses of Services cannot do without rules of the kernel.
 * docs/userspace.md says the same.
 */
const withoutRules: readonly Skip[] = [
  withoutProxiedSctp,
  {
    reason: 'addresses: a listener accepts everybody, so one with source ranges is not opened',
    flows: ({ service, target }) => target === 'load-balancer' && hasRanges(service),
  },
  {
    reason: 'addresses: policy Local binds node ports for all clients, other addresses for none',
    flows: ({ service, client, target }) =>
      service.shorthand.externalTrafficPolicy === 'Local' &&
      (isVirtual(target) || (target === 'node' && isInCluster(client))),
  },
  {
    reason: 'addresses: where rules would drop there is no listener, and the kernel refuses',
    flows: ({ gets }) => gets === 'dropped',
    instead: { gets: 'refused' },
  },
  {
    reason: 'addresses: without rules no client can be shown to an endpoint',
    flows: ({ target, source }) => target !== 'endpoint' && source === 'kept',
    instead: anySource,
  },
  {
    reason: 'addresses: programs of this machine connect to its addresses from the same address',
    flows: ({ client, source }) => source === 'announced' && client.place === 'node',
  },
]

/** What each mode skips. A case counts as skipped if all its flows are skipped. */
export const skips: Readonly<Record<ModeName, readonly Skip[]>> = {
  nftables: [
    withoutHeader,
    {
      reason: 'NF25: node ports on localhost are a listener, for TCP only',
      flows: (check) => toLocalhost(check) && check.protocol !== 'TCP',
    },
  ],
  iptables: [
    withoutHeader,
    {
      reason: 'IT35: node ports on ::1 cannot be done with IPv6 NAT',
      flows: (check) => toLocalhost(check) && check.family === 'IPv6',
    },
  ],
  ipvs: [
    withoutHeader,
    {
      reason: 'IP21: ipvs mode has no node ports on localhost',
      flows: toLocalhost,
    },
  ],
  userspace: [withoutProxiedSctp],
  winuserspace: withoutRules,
  ebpf: [
    withoutHeader,
    {
      reason: 'ebpf: a socket of the node that goes to an endpoint is not masqueraded',
      flows: (check) => isTranslatedAtSocket(check) && check.source === 'masqueraded',
      instead: anySource,
    },
  ],
}

/** No mode supports SCTP on a kernel without it. */
export const withoutSctp: Skip = {
  reason: 'this kernel has no SCTP',
  flows: ({ protocol }) => protocol === 'SCTP',
}
