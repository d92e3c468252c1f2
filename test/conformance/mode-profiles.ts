import type { ModeName } from '../../lib/config/config.js'
import { isOnNode } from '../../lib/lab/world/topology.js'
import type { Check } from './flows.js'

/** A kind of flow that a mode does not support, with the reason. */
export interface Skip {
  readonly reason: string
  readonly flows: (check: Check) => boolean
  /** The flow is checked, but not which source the endpoint sees. */
  readonly only?: 'source'
}

const toLocalhost = ({ target }: Check) => target === 'localhost'

/** Sockets of the node and its pods; other machines and SCTP take the packet path. */
const isTranslatedAtSocket = ({ client, protocol }: Check) =>
  (protocol === 'TCP' || protocol === 'UDP') && isOnNode(client.place)

/** Kernel modes change packets; only a proxy can put bytes in front of a connection. */
const withoutHeader: Skip = {
  reason: 'only userspace mode writes PROXY headers',
  flows: ({ source }) => source === 'announced',
}

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
  userspace: [],
  winuserspace: [],
  ebpf: [
    withoutHeader,
    {
      reason: 'ebpf: a socket of the node that goes to an endpoint is not masqueraded',
      flows: (check) => isTranslatedAtSocket(check) && check.source === 'masqueraded',
      only: 'source',
    },
  ],
}

/** What no mode supports if the kernel lacks it. */
export const withoutSctp: Skip = {
  reason: 'this kernel has no SCTP',
  flows: ({ protocol }) => protocol === 'SCTP',
}
