import { isLoopback, parseCidr, parseIp, parseHostPort, parsePortRange } from '../state/ip.js'
import { nodePortWords } from '../state/node-view.js'
import { isProxyMode, type Config, type ProxyMode } from './config.js'
import { formatDuration } from './duration.js'
import { isEnabled } from './feature-gates.js'
import { keyAt } from './keys.js'
import { quote } from './settings.js'
import { valueAt } from './write.js'

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
  const check: Check = (ok, path, wanted, value) => {
    if (ok) return
    const shown = value ?? keyAt(path)?.kind.toYaml(valueAt(config, path))
    problems.push(`${place(path)}: ${quote(shown)} ${wanted}`)
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

/** The message shows the value at the path, or `value`, which is one item of a list there. */
type Check = (ok: boolean, path: string, wanted: string, value?: string) => void

function checkPeriods(config: Config, check: Check): void {
  for (const section of sectionsInUse(config)) {
    const { minSyncPeriod: minMs, syncPeriod: syncMs } = config[section]
    check(syncMs > 0, `${section}.syncPeriod`, 'must be greater than 0')
    if (minMs === 'measured') continue
    const path = `${section}.minSyncPeriod`
    check(minMs >= 0, path, 'must not be negative')
    check(minMs <= syncMs, path, `must not exceed syncPeriod ${formatDuration(syncMs)}`)
  }
  for (const path of ['configSyncPeriod', 'udpIdleTimeout'] as const) {
    check(config[path] > 0, path, 'must be greater than 0')
  }
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
  check(parseIp(bindAddress) !== undefined, 'bindAddress', 'is not an IP address')
  for (const path of ['healthzBindAddress', 'metricsBindAddress', 'dashboardAddress'] as const) {
    const ok = config[path] === '' || parseHostPort(config[path]) !== undefined
    check(ok, path, 'is not IP:port with a port of 1-65535, such as 127.0.0.1:10256')
  }
  checkDashboard(config, check)
  checkCollector(config, check)
  for (const item of nodePortAddresses) {
    const ok = nodePortWords.includes(item) || parseCidr(item) !== undefined
    const wanted = 'is not a CIDR such as 192.168.0.0/16, nor primary, localhost or all'
    check(ok, 'nodePortAddresses', wanted, item)
  }
}

function checkDashboard(config: Config, check: Check): void {
  const { dashboardAddress: address, dashboardTokenFile: token } = config
  const host = parseIp(parseHostPort(address)?.host ?? '')
  const isGuarded = !host || isLoopback(host) || token !== ''
  const advice =
    'can be reached from other machines; give --dashboard-token-file, or use 127.0.0.1 and a tunnel'
  check(isGuarded, 'dashboardAddress', advice)
  const { dashboardTLSCertFile: cert, dashboardTLSKeyFile: key } = config
  const isPair = (cert === '') === (key === '')
  // The message names the place of the value that is set.
  if (cert !== '') check(isPair, 'dashboardTLSCertFile', 'and dashboardTLSKeyFile go together')
  else check(isPair, 'dashboardTLSKeyFile', 'and dashboardTLSCertFile go together')
}

function checkCollector({ flows }: Config, check: Check): void {
  const { endpoint } = flows.otlp
  if (endpoint === '') return
  const url = URL.canParse(endpoint) ? new URL(endpoint) : undefined
  const isPlain = url && url.username + url.password + url.search + url.hash === ''
  const isWeb = url?.protocol === 'http:' || url?.protocol === 'https:'
  const path = 'flows.otlp.endpoint'
  const wanted = 'is not a URL such as http://127.0.0.1:4318, without a password and without ? or #'
  check(isPlain === true && isWeb, path, wanted)
  check(flows.enabled, path, 'needs connections to send; add --flows')
}

/** These are checked whatever the mode is. */
const neverNegative = [
  'conntrack.maxPerCore',
  'conntrack.min',
  'conntrack.tcpEstablishedTimeout',
  'conntrack.tcpCloseWaitTimeout',
  'conntrack.udpTimeout',
  'conntrack.udpStreamTimeout',
  'clientConnection.burst',
  'logging.verbosity',
  'userspace.drainTimeout',
]

function checkNumbers(config: Config, check: Check): void {
  const { oomScoreAdj, showHiddenMetricsForVersion: hidden, userspace } = config
  for (const path of neverNegative) {
    check(Number(valueAt(config, path)) >= 0, path, 'must not be negative')
  }
  const oomOk = oomScoreAdj >= -1000 && oomScoreAdj <= 1000
  check(oomOk, 'oomScoreAdj', 'is not within -1000..1000')
  const hiddenOk = earlierMinors.includes(hidden)
  check(hiddenOk, 'showHiddenMetricsForVersion', 'is not an earlier minor version, 1.34 to 1.36')
  const workersOk = userspace.workers >= 0 && userspace.workers <= 256
  check(workersOk, 'userspace.workers', 'is not within 0..256')
}

function checkLocal(config: Config, check: Check): void {
  const { detectLocalMode, detectLocal, clusterCIDR } = config
  if (detectLocalMode === 'BridgeInterface') {
    const isNamed = detectLocal.bridgeInterface !== ''
    check(isNamed, 'detectLocal.bridgeInterface', 'must name the bridge of the pods')
  } else if (detectLocalMode === 'InterfaceNamePrefix') {
    const isGiven = detectLocal.interfaceNamePrefix !== ''
    const wanted = 'must be the prefix of the names of pod interfaces'
    check(isGiven, 'detectLocal.interfaceNamePrefix', wanted)
  } else if (detectLocalMode !== 'NodeCIDR' && clusterCIDR !== '') {
    const cidrs = clusterCIDR.split(',').map((text) => parseCidr(text.trim()))
    const families = new Set(cidrs.map((cidr) => cidr?.family))
    const ok = !families.has(undefined) && cidrs.length <= 2 && families.size === cidrs.length
    check(ok, 'clusterCIDR', 'is not a CIDR, or two of different families')
  }
}

function checkModes(config: Config, check: Check): void {
  const { ipvs, userspace, portRange } = config
  const isBit = (value: number) => value >= 0 && value <= 31
  check(isBit(config.iptables.masqueradeBit), 'iptables.masqueradeBit', 'is not within 0..31')
  if (sectionsInUse(config).has('nftables')) {
    check(isBit(config.nftables.masqueradeBit), 'nftables.masqueradeBit', 'is not within 0..31')
  }
  if (config.mode === 'ipvs') {
    const isOn = isEnabled(config.featureGates, 'KubeProxyIPVS')
    const advice = 'remove that or choose another mode'
    check(isOn, 'mode', `is switched off by the feature gate KubeProxyIPVS; ${advice}`)
    for (const path of ['tcpTimeout', 'tcpFinTimeout', 'udpTimeout', 'gracefulPeriod'] as const) {
      check(ipvs[path] >= 0, `ipvs.${path}`, 'must not be negative')
    }
    for (const cidr of ipvs.excludeCIDRs) {
      check(parseCidr(cidr) !== undefined, 'ipvs.excludeCIDRs', 'is not a CIDR', cidr)
    }
  }
  if (config.mode === 'userspace') {
    const canKeep = userspace.sourceAddress !== 'keep' || userspace.portals !== 'addresses'
    const why = 'cannot be done with userspace.portals addresses'
    check(canKeep, 'userspace.sourceAddress', why)
  }
  if (isProxyMode(config.mode)) {
    const ok = parsePortRange(portRange) !== undefined
    check(ok, 'portRange', 'is not a port range such as 30000-31000, 30000+99 or 30000')
  }
}
