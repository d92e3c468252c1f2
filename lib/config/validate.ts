import { isLoopback, parseCidr, parseIp, parseHostPort, parsePortRange } from '../state/ip.js'
import { nodePortWords } from '../state/node-view.js'
import { isProxyMode, type Config, type ProxyMode } from './config.js'
import { formatDuration } from './duration.js'
import { isEnabled } from './feature-gates.js'
import { quote } from './settings.js'

interface Checked {
  readonly problems: readonly string[]
  readonly warnings: readonly string[]
}

/** The minor versions that kube-proxy 1.35 to 1.37 take: each takes the one before (VA08). */
const earlierMinors: readonly string[] = ['', '1.34', '1.35', '1.36']

/**
 * Checks the rules of section 13 (VA01-VA10). `place` tells where a value is set. As upstream, some
 * sections are checked only for their mode, so a file that is valid there is valid here.
 */
export function validate(config: Config, place: (path: string) => string): Checked {
  const problems: string[] = []
  const check = (ok: boolean, path: string, value: unknown, wanted: string) => {
    if (!ok) problems.push(`${place(path)}: ${quote(value)} ${wanted}`)
  }
  checkPeriods(config, check)
  checkAddresses(config, check)
  checkNumbers(config, check)
  checkLocal(config, check)
  checkModes(config, check)
  const warnings: string[] = []
  if (!isProxyMode(config.mode) && parsePortRange(config.portRange) === undefined) {
    warnings.push(
      `${place('portRange')}: ${quote(config.portRange)} is not a port range, so it is not used`,
    )
  }
  return { problems, warnings }
}

type Check = (ok: boolean, path: string, value: unknown, wanted: string) => void

function checkPeriods(config: Config, check: Check): void {
  for (const section of sectionsInUse(config)) {
    const { minSyncPeriod: minMs, syncPeriod: syncMs } = config[section]
    const sync = formatDuration(syncMs)
    check(syncMs > 0, `${section}.syncPeriod`, sync, 'must be greater than 0')
    if (minMs === 'measured') continue
    const min = formatDuration(minMs)
    check(minMs >= 0, `${section}.minSyncPeriod`, min, 'must not be negative')
    check(minMs <= syncMs, `${section}.minSyncPeriod`, min, `must not exceed syncPeriod ${sync}`)
  }
  const period = formatDuration(config.configSyncPeriod)
  check(config.configSyncPeriod > 0, 'configSyncPeriod', period, 'must be greater than 0')
  const idle = formatDuration(config.udpIdleTimeout)
  check(config.udpIdleTimeout > 0, 'udpIdleTimeout', idle, 'must be greater than 0')
}

/**
 * The sections whose values can be used. That of userspace mode, the default fallback, is left out:
 * upstream accepts a file whatever the sections of other modes say.
 */
function sectionsInUse({ mode, modeFallback: fallback }: Config) {
  const own = mode === 'auto' ? (['nftables', 'iptables'] as const) : [sectionOfPeriods(mode)]
  const named = fallback === 'iptables' || fallback === 'nftables' ? [fallback] : []
  return new Set([...own, ...named])
}

/** A mode without periods of its own uses those of another mode. */
function sectionOfPeriods(mode: Exclude<ProxyMode, 'auto'>): 'iptables' | 'ipvs' | 'nftables' {
  if (mode === 'ebpf') return 'nftables'
  return mode === 'ipvs' || mode === 'nftables' ? mode : 'iptables'
}

function checkAddresses(config: Config, check: Check): void {
  const { bindAddress, nodePortAddresses } = config
  check(parseIp(bindAddress) !== undefined, 'bindAddress', bindAddress, 'is not an IP address')
  for (const path of ['healthzBindAddress', 'metricsBindAddress', 'dashboardAddress'] as const) {
    const ok = config[path] === '' || parseHostPort(config[path]) !== undefined
    check(ok, path, config[path], 'is not IP:port with a port of 1-65535, such as 127.0.0.1:10256')
  }
  checkDashboard(config, check)
  checkCollector(config, check)
  for (const item of nodePortAddresses) {
    const ok = nodePortWords.includes(item) || parseCidr(item) !== undefined
    const wanted = 'is not a CIDR such as 192.168.0.0/16, nor primary, localhost or all'
    check(ok, 'nodePortAddresses', item, wanted)
  }
}

function checkDashboard(config: Config, check: Check): void {
  const { dashboardAddress: address, dashboardTokenFile: token } = config
  const host = parseIp(parseHostPort(address)?.host ?? '')
  const isGuarded = !host || isLoopback(host) || token !== ''
  const advice =
    'can be reached from other machines; give --dashboard-token-file, or use 127.0.0.1 and a tunnel'
  check(isGuarded, 'dashboardAddress', address, advice)
  const { dashboardTLSCertFile: cert, dashboardTLSKeyFile: key } = config
  const isPair = (cert === '') === (key === '')
  // The message names the place of the value that is set.
  if (cert !== '')
    check(isPair, 'dashboardTLSCertFile', cert, 'and dashboardTLSKeyFile go together')
  else check(isPair, 'dashboardTLSKeyFile', key, 'and dashboardTLSCertFile go together')
}

function checkCollector({ flows }: Config, check: Check): void {
  const { endpoint } = flows.otlp
  if (endpoint === '') return
  const url = URL.canParse(endpoint) ? new URL(endpoint) : undefined
  const isPlain = url && url.username + url.password + url.search + url.hash === ''
  const isWeb = url?.protocol === 'http:' || url?.protocol === 'https:'
  const path = 'flows.otlp.endpoint'
  const wanted = 'is not a URL such as http://127.0.0.1:4318, without a password and without ? or #'
  check(isPlain === true && isWeb, path, endpoint, wanted)
  check(flows.enabled, path, endpoint, 'needs connections to send; add --flows')
}

function checkNumbers(config: Config, check: Check): void {
  const { conntrack, clientConnection, oomScoreAdj, showHiddenMetricsForVersion: hidden } = config
  for (const path of ['maxPerCore', 'min'] as const) {
    check(conntrack[path] >= 0, `conntrack.${path}`, conntrack[path], 'must not be negative')
  }
  for (const path of [
    'tcpEstablishedTimeout',
    'tcpCloseWaitTimeout',
    'udpTimeout',
    'udpStreamTimeout',
  ] as const) {
    const text = formatDuration(conntrack[path])
    check(conntrack[path] >= 0, `conntrack.${path}`, text, 'must not be negative')
  }
  const { burst } = clientConnection
  check(burst >= 0, 'clientConnection.burst', burst, 'must not be negative')
  const oomOk = oomScoreAdj >= -1000 && oomScoreAdj <= 1000
  check(oomOk, 'oomScoreAdj', oomScoreAdj, 'is not within -1000..1000')
  check(
    earlierMinors.includes(hidden),
    'showHiddenMetricsForVersion',
    hidden,
    'is not an earlier minor version, 1.34 to 1.36',
  )
  const { verbosity } = config.logging
  check(verbosity >= 0, 'logging.verbosity', verbosity, 'must not be negative')
}

function checkLocal(config: Config, check: Check): void {
  const { detectLocalMode, detectLocal, clusterCIDR } = config
  if (detectLocalMode === 'BridgeInterface') {
    const name = detectLocal.bridgeInterface
    check(name !== '', 'detectLocal.bridgeInterface', name, 'must name the bridge of the pods')
  } else if (detectLocalMode === 'InterfaceNamePrefix') {
    const prefix = detectLocal.interfaceNamePrefix
    const path = 'detectLocal.interfaceNamePrefix'
    check(prefix !== '', path, prefix, 'must be the prefix of the names of pod interfaces')
  } else if (detectLocalMode !== 'NodeCIDR' && clusterCIDR !== '') {
    const cidrs = clusterCIDR.split(',').map((text) => parseCidr(text.trim()))
    const families = new Set(cidrs.map((cidr) => cidr?.family))
    const ok = !families.has(undefined) && cidrs.length <= 2 && families.size === cidrs.length
    check(ok, 'clusterCIDR', clusterCIDR, 'is not a CIDR, or two of different families')
  }
}

function checkModes(config: Config, check: Check): void {
  const { ipvs, userspace, portRange } = config
  const isBit = (value: number) => value >= 0 && value <= 31
  const bit = config.iptables.masqueradeBit
  check(isBit(bit), 'iptables.masqueradeBit', bit, 'is not within 0..31')
  if (sectionsInUse(config).has('nftables')) {
    const own = config.nftables.masqueradeBit
    check(isBit(own), 'nftables.masqueradeBit', own, 'is not within 0..31')
  }
  if (config.mode === 'ipvs') {
    const isOn = isEnabled(config.featureGates, 'KubeProxyIPVS')
    check(
      isOn,
      'mode',
      config.mode,
      'is switched off by the feature gate KubeProxyIPVS; remove that or choose another mode',
    )
    for (const path of ['tcpTimeout', 'tcpFinTimeout', 'udpTimeout', 'gracefulPeriod'] as const) {
      check(ipvs[path] >= 0, `ipvs.${path}`, formatDuration(ipvs[path]), 'must not be negative')
    }
    for (const cidr of ipvs.excludeCIDRs) {
      check(parseCidr(cidr) !== undefined, 'ipvs.excludeCIDRs', cidr, 'is not a CIDR')
    }
  }
  if (config.mode === 'userspace') {
    const { sourceAddress } = userspace
    const canKeep = sourceAddress !== 'keep' || userspace.portals !== 'addresses'
    const why = 'cannot be done with userspace.portals addresses'
    check(canKeep, 'userspace.sourceAddress', sourceAddress, why)
  }
  if (isProxyMode(config.mode)) {
    const ok = parsePortRange(portRange) !== undefined
    check(ok, 'portRange', portRange, 'is not a port range such as 30000-31000, 30000+99 or 30000')
  }
  const { workers, drainTimeout } = userspace
  const workersOk = workers >= 0 && workers <= 256
  check(workersOk, 'userspace.workers', workers, 'is not within 0..256')
  const drain = formatDuration(drainTimeout)
  check(drainTimeout >= 0, 'userspace.drainTimeout', drain, 'must not be negative')
}
