import { isProxyMode, type Config, type ProxyMode, type ModeName } from './config.js'
import { isEnabled } from './feature-gates.js'
import { removalAnnotation } from '../state/connection-annotations.js'
import type { DetectLocal } from '../state/node-view.js'
import type { IpFamily } from '../state/ip.js'
import type { TrackerSettings } from '../state/tracker.js'
import {
  proxyAnnotations,
  unsupportedInMode,
  unsupportedWithoutRules,
  type Unsupported,
} from '../state/unsupported.js'
import type { Substitute, Substitutes } from '../state/balance.js'

/** The part of the configuration that the tracker needs. */
export function trackerSettings(
  config: Config,
  mode: ProxyMode,
  node: { readonly nodeName: string; readonly families: readonly IpFamily[] },
): TrackerSettings {
  return {
    ...node,
    bindAddress: config.bindAddress,
    nodePortAddresses: nodePortAddresses(config, mode),
    detectLocal: detectLocal(config),
    // The userspace proxy opens a connection of its own, which the node translates like any other.
    translatesOnce: !isProxyMode(mode),
    substitutes: substitutesOf(mode),
    unsupported: unsupportedIn(mode, config),
    endpointRules: { allowsLoopback: isEnabled(config.featureGates, 'AllowLoopbackEndpoints') },
    allowsExternalIps: isEnabled(config.featureGates, 'AllowServiceExternalIPs'),
  }
}

/** CIDRs, and words such as `primary`. The meaning of an empty setting depends on the mode (section 11). */
export function nodePortAddresses(config: Config, mode: ProxyMode): readonly string[] {
  const unset = config.nodePortAddresses.length === 0
  return unset && (mode === 'nftables' || mode === 'ebpf') ? ['primary'] : config.nodePortAddresses
}

/** The annotations of Services that cannot take effect in a mode. */
export function unsupportedIn(
  mode: ProxyMode,
  { userspace }: Pick<Config, 'userspace'>,
): readonly Unsupported[] {
  if (mode === '' || mode === 'auto') return []
  if (mode === 'winuserspace')
    return unsupportedWithoutRules("the client's address cannot be kept on Windows")
  if (mode === 'userspace') {
    if (userspace.portals !== 'addresses') return []
    return unsupportedWithoutRules(
      "the client's address cannot be kept with --userspace-portals=addresses",
    )
  }
  // IPVS has its own table of connections.
  const more = mode === 'ipvs' ? [removalAnnotation] : []
  return unsupportedInMode(mode, [...proxyAnnotations, ...more])
}

function detectLocal(config: Config): DetectLocal {
  switch (config.detectLocalMode) {
    case 'NodeCIDR':
      return { mode: 'NodeCIDR' }
    case 'BridgeInterface':
      return { mode: 'BridgeInterface', name: config.detectLocal.bridgeInterface }
    case 'InterfaceNamePrefix':
      return { mode: 'InterfaceNamePrefix', prefix: config.detectLocal.interfaceNamePrefix }
    case '':
    case 'ClusterCIDR': {
      const cidrs = config.clusterCIDR.split(',').map((text) => text.trim())
      return { mode: 'ClusterCIDR', cidrs: cidrs.filter((text) => text !== '') }
    }
  }
}

const countsNothing: Substitute = {
  used: 'random',
  why: 'rules of the kernel do not count connections',
}

/**
 * The substitutes that each mode uses for words of the annotation `kube-proxy-ts/balance` that it
 * cannot follow. It follows all other words. docs/balancing.md shows the same as a table.
 */
export const substitutes: Readonly<Record<ModeName, Substitutes>> = {
  userspace: {},
  winuserspace: {},
  nftables: { 'least-connections': countsNothing },
  iptables: {
    'least-connections': countsNothing,
    maglev: { used: 'source-hash', why: 'rules of iptables have no maps' },
  },
  // Its programs leave this word to the packet path, which is that of nftables mode.
  ebpf: { 'least-connections': { ...countsNothing, onlyForPackets: true } },
  ipvs: {
    random: { used: 'round-robin', why: 'no scheduler of the kernel draws by chance alone' },
    maglev: {
      used: 'maglev',
      why: "the kernel's own table is smaller, and more clients move when an endpoint comes or goes",
      by: 'the scheduler mh',
    },
  },
}

export function substitutesOf(mode: ProxyMode): Substitutes {
  return mode === '' || mode === 'auto' ? {} : substitutes[mode]
}
