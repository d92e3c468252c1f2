import { ConfigError } from '../errors.js'
import { familyOf, parseCidr, type IpFamily } from '../state/ip.js'
import { nodePortWords } from '../state/node-view.js'
import type { Config, ProxyMode } from './config.js'
import { nodePortAddresses } from './tracker-settings.js'

/**
 * Checks the configuration against the mode and the families of this node (L11, L12, R08). Returns
 * warnings. Throws ConfigError where the proxy could not work.
 */
export function startWarnings(
  config: Config,
  mode: ProxyMode,
  families: readonly IpFamily[],
): readonly string[] {
  return [
    ...unsetModeWarnings(config, mode),
    ...localTrafficWarnings(config, families),
    ...nodePortWarnings(nodePortAddresses(config, mode), families),
    ...guessWarnings(config, mode),
    ...bindWarnings(config, families),
  ]
}

/** kube-proxy 1.37 warns of this, too, and plans another default (KEP-5343). */
export function unsetModeWarnings(config: Pick<Config, 'mode'>, mode: string): string[] {
  if (config.mode !== '' || mode !== 'iptables') return []
  return [
    'no mode is set, which means iptables; Kubernetes 1.40 plans nftables as the default, ' +
      'so set --proxy-mode, or mode in the file of --config, to decide it yourself',
  ]
}

function localTrafficWarnings(config: Config, families: readonly IpFamily[]): string[] {
  const { detectLocalMode, clusterCIDR } = config
  if (detectLocalMode !== '' && detectLocalMode !== 'ClusterCIDR') return []
  if (clusterCIDR === '') {
    return [
      'clusterCIDR is not set, so traffic from pods is not recognized, and traffic to ClusterIPs ' +
        'is not masqueraded; set --cluster-cidr or --detect-local-mode',
    ]
  }
  const present = cidrFamilies(clusterCIDR.split(','))
  const missing = families.filter((family) => !present.has(family))
  if (missing.length === families.length) {
    throw new ConfigError(
      `clusterCIDR: "${clusterCIDR}" has no ${families.join(' or ')} range, but this node has no other family; add one`,
    )
  }
  return missing.map(
    (family) =>
      `clusterCIDR has no ${family} range, so ${family} traffic from pods is not recognized`,
  )
}

function nodePortWarnings(addresses: readonly string[], families: readonly IpFamily[]): string[] {
  if (addresses.length === 0) {
    return [
      'nodePortAddresses is not set, so node ports answer on all addresses of this node; ' +
        'consider --nodeport-addresses=primary',
    ]
  }
  if (addresses.some((text) => nodePortWords.includes(text))) return []
  const present = cidrFamilies(addresses)
  return families
    .filter((family) => !present.has(family))
    .map(
      (family) =>
        `nodePortAddresses has no ${family} range, so node ports answer on all ${family} addresses`,
    )
}

/** A folder of YAML seldom has the Node object that tells the primary address. */
function guessWarnings(config: Config, mode: ProxyMode): string[] {
  const isGuess = config.manifests !== '' && config.nodePortAddresses.length === 0
  if (!isGuess || !nodePortAddresses(config, mode).includes('primary')) return []
  return [
    'nodePortAddresses is not set, so node ports answer on one address of this node and family: ' +
      'the first of its interfaces, unless a Node object among the manifests names another; ' +
      'set --nodeport-addresses to the addresses that are meant',
  ]
}

function bindWarnings(config: Config, families: readonly IpFamily[]): string[] {
  const { bindAddress } = config
  const family = familyOf(bindAddress)
  if (family === undefined || families.includes(family)) return []
  return [`bindAddress ${bindAddress} is ${family}, but this node has no ${family}`]
}

function cidrFamilies(cidrs: readonly string[]): ReadonlySet<IpFamily | undefined> {
  return new Set(cidrs.map((text) => parseCidr(text.trim())?.family))
}
