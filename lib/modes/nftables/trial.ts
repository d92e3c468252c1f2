import type { Command, Transaction } from '../../kernel/nftables/model.js'
import type { DesiredService, DesiredState, Endpoint } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import { parseCidr, parseIp } from '../../state/ip.js'
import { keyOf, portNameOf } from '../../state/names.js'
import { dropReasons, refusalGroup } from '../../config/config.js'
import { PersistentMap } from '../../state/persistent-map.js'
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
  const plan = nftablesPlanner({ masqueradeAll: false, masqueradeBit: 14 })(trialState(family))
  return trialOf(family, creation(plan))
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

function trialState(family: IpFamily): DesiredState {
  const plain = trialService(family, 1)
  const services = [
    plain,
    { ...trialService(family, 2), affinitySeconds: 60 },
    {
      ...plain,
      ...withoutOutside,
      key: 'inner',
      clusterIp: trialIp(family, 3),
      clusterEndpoints: Array.from({ length: 3 }, () => plain.clusterEndpoints).flat(),
    },
  ]
  return {
    family,
    services: PersistentMap.from(services.map((service) => [service.key, service])),
    node: {
      name: 'trial',
      primaryIp: undefined,
      localAddresses: [],
      nodePorts: { matchesAll: true, cidrs: [], addresses: [], asksForLoopback: false },
      localTraffic: { by: 'interface-prefix', prefix: 'trial' },
    },
    serviceCidrs: [],
  }
}

/** A Service with its ClusterIP alone: shared chains choose its endpoints. */
const withoutOutside = {
  name: { namespace: 'trial', name: 'inner', port: 'p', protocol: 'TCP' },
  nodePort: 0,
  loadBalancerIps: [],
  externallyAccessible: false,
} as const

const trialIp = (family: IpFamily, last: number) =>
  parseIp(`${family === 'IPv4' ? '192.0.2.' : '2001:db8::'}${last}`)?.text ?? ''

function trialService(family: IpFamily, host: number): DesiredService {
  const ipOf = (last: number) => trialIp(family, last)
  const portName = { namespace: 'trial', name: `s${host}`, port: 'p', protocol: 'TCP' } as const
  const endpoints = [ipOf(11), ipOf(12)].map((ip): Endpoint => ({
    ip,
    port: 80,
    key: ip,
    isLocal: true,
    ready: true,
    serving: true,
    terminating: false,
    weight: 1,
  }))
  const range = parseCidr(family === 'IPv4' ? '198.51.100.0/24' : '2001:db8:1::/48')
  return {
    key: keyOf(portName),
    name: portName,
    portName: portNameOf(portName),
    protocol: 'TCP',
    clusterIp: ipOf(host),
    port: 80,
    nodePort: 30000 + host,
    externalIps: [],
    loadBalancerIps: [ipOf(20 + host)],
    withheldIps: [],
    unusableEndpoints: [],
    sourceRanges: range ? [range] : [],
    affinitySeconds: undefined,
    internalPolicyLocal: false,
    externalPolicyLocal: true,
    externallyAccessible: true,
    healthCheckNodePort: 0,
    options: {},
    balance: undefined,
    clusterEndpoints: endpoints,
    localEndpoints: endpoints.slice(0, 1),
    reachableEndpoints: endpoints,
    servingEndpoints: endpoints,
    hasAnyEndpoints: true,
    readyLocalAddresses: [],
    internal: 'cluster',
    external: 'local',
  }
}
