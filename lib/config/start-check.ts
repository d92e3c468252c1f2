import { ConfigError } from '../errors.js'
import { familyOf, parseCidr, type IpFamily } from '../state/ip.js'
import type { Config, ProxyMode } from './config.js'
import { nodePortAddresses } from './tracker-settings.js'

/**
 * What can only be judged once mode and families of this node are known (L11, L12, R08). Returns
 * what to warn about; throws ConfigError where nothing sensible could run.
 */
export function startWarnings(
  config: Config,
  mode: ProxyMode,
  families: readonly IpFamily[],
): readonly string[] {
  return [
    ...localTrafficWarnings(config, families),
    ...nodePortWarnings(nodePortAddresses(config, mode), families),
    ...bindWarnings(config, families),
  ]
}

function localTrafficWarnings(config: Config, families: readonly IpFamily[]): string[] {
  const { detectLocalMode, clusterCIDR } = config
  if (detectLocalMode !== '' && detectLocalMode !== 'ClusterCIDR') return []
  if (clusterCIDR === '') {
    return [
      'clusterCIDR is not set: traffic of pods cannot be told from other traffic, so none is ' +
        'masqueraded for leaving the cluster; set --cluster-cidr or --detect-local-mode',
    ]
  }
  const present = cidrFamilies(clusterCIDR.split(','))
  const missing = families.filter((family) => !present.has(family))
  if (missing.length === families.length) {
    throw new ConfigError(
      `clusterCIDR: "${clusterCIDR}" holds no ${families.join(' or ')} range, which is all this node has`,
    )
  }
  return missing.map(
    (family) => `clusterCIDR has no ${family} range: pods are not told apart there`,
  )
}

function nodePortWarnings(addresses: readonly string[], families: readonly IpFamily[]): string[] {
  if (addresses.length === 0) {
    return [
      'nodePortAddresses is not set: node ports answer on all addresses of this node; ' +
        'consider --nodeport-addresses=primary',
    ]
  }
  if (addresses.includes('primary')) return []
  const present = cidrFamilies(addresses)
  return families
    .filter((family) => !present.has(family))
    .map((family) => `nodePortAddresses has no ${family} range: all ${family} addresses count`)
}

function bindWarnings(config: Config, families: readonly IpFamily[]): string[] {
  const { bindAddress } = config
  const family = familyOf(bindAddress)
  if (family === undefined || families.includes(family)) return []
  return [`bindAddress ${bindAddress} is ${family}, which this node does not have`]
}

function cidrFamilies(cidrs: readonly string[]): ReadonlySet<IpFamily | undefined> {
  return new Set(cidrs.map((text) => parseCidr(text.trim())?.family))
}
