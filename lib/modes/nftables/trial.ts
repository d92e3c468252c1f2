import type { Command, Transaction } from '../../kernel/nftables/model.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import { parseEndpointSlice } from '../../state/parse-endpoint-slice.js'
import { parseService } from '../../state/parse-service.js'
import { Tracker } from '../../state/tracker.js'
import { dropReasons, refusalGroup } from '../../config/config.js'
import { nftablesPlanner } from './plan.js'
import { creation } from './changes.js'
import { nftFamilyOf } from './names.js'

/** The trial has another name than the real table, so it changes nothing. */
const trialTable = 'kube-proxy-trial'

/**
 * Makes a ruleset that the kernel is asked to check, with every kind of rule that this mode needs.
 * The addresses are of the ranges for documentation.
 */
export function trialTransaction(family: IpFamily): Transaction {
  const plan = nftablesPlanner({ masqueradeAll: false, masqueradeBit: 14 })
  return trialOf(
    family,
    trialStates(family).flatMap((state) => creation(plan(state))),
  )
}

function trialOf(family: IpFamily, commands: readonly Command[]): Transaction {
  const table = { family: nftFamilyOf(family), name: trialTable, comment: 'trial' }
  return { table, commands: [{ do: 'add-table' }, ...commands] }
}

/** A rule that hashes the address of a client. Kernels without nft_hash can do all others. */
export function hashTrialTransaction(family: IpFamily): Transaction {
  const map = 'places'
  const statement = { kind: 'dnat-by-source', protocol: 'tcp', places: 2, map } as const
  const set = { name: map, key: ['number'], holds: 'targets', protocol: 'tcp' } as const
  const chain = { name: 'by-source', rules: [] }
  return trialOf(family, [
    { do: 'add-set', set },
    { do: 'add-chain', chain },
    { do: 'add-rule', chain: chain.name, rule: { statements: [statement] } },
  ])
}

/** A rule that logs to a listener. Kernels without nfnetlink_log can do all others. */
export function logTrialTransaction(family: IpFamily): Transaction {
  const chain = { name: 'logged', rules: [] }
  const prefix = dropReasons.localPolicy
  const statements = [{ kind: 'log', group: refusalGroup, prefix }] as const
  return trialOf(family, [
    { do: 'add-chain', chain },
    { do: 'add-rule', chain: chain.name, rule: { statements } },
  ])
}

/**
 * One Service has every way in. The next one has the affinity of clients, too. The last one has its
 * ClusterIP alone, and so many endpoints that shared chains choose between them.
 */
function trialStates(family: IpFamily): readonly DesiredState[] {
  const tracker = new Tracker({
    ...{ families: [family], nodeName: 'trial', bindAddress: '', allowsExternalIps: false },
    ...{ nodePortAddresses: [], detectLocal: { mode: 'InterfaceNamePrefix', prefix: 'trial' } },
  })
  const isIpv4 = family === 'IPv4'
  const ip = (last: number) => `${isIpv4 ? '192.0.2.' : '2001:db8::'}${last}`
  const add = (host: number, endpoints: number, spec: object, ports: object = {}) => {
    const metadata = { namespace: 'trial', name: `s${host}` }
    const service = parseService({
      metadata,
      spec: { clusterIP: ip(host), ports: [{ port: 80, ...ports }], ...spec },
      status: { loadBalancer: { ingress: [{ ip: ip(20 + host) }] } },
    })
    const slice = parseEndpointSlice({
      metadata: { ...metadata, labels: { 'kubernetes.io/service-name': metadata.name } },
      addressType: family,
      ports: [{ port: 80 }],
      endpoints: Array.from({ length: endpoints }, (_, index) => ({
        addresses: [ip(30 + index)],
        nodeName: index === 0 ? 'trial' : 'other',
      })),
    })
    if (service.outcome === 'accepted') tracker.upsertService(service.value)
    if (slice.outcome === 'accepted') tracker.upsertEndpointSlice(slice.value)
  }
  const outside = {
    type: 'LoadBalancer',
    loadBalancerSourceRanges: [isIpv4 ? '198.51.100.0/24' : '2001:db8:1::/48'],
    externalTrafficPolicy: 'Local',
  }
  add(1, 2, outside, { nodePort: 30001 })
  add(2, 2, { ...outside, sessionAffinity: 'ClientIP' }, { nodePort: 30002 })
  add(3, 6, { type: 'ClusterIP' })
  return tracker.take().states
}
