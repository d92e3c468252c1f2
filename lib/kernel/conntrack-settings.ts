import { availableParallelism } from 'node:os'
import { countProcessors } from '../platform.js'
import type { Sysctls, SysctlOutcome, SysctlWish } from './sysctl.js'

/**
 * The `conntrack` section of the configuration, with times in milliseconds; 0 or false leaves the
 * kernel's value.
 */
interface ConntrackSettings {
  readonly maxPerCore: number
  readonly min: number
  readonly tcpEstablishedTimeout: number
  readonly tcpCloseWaitTimeout: number
  readonly udpTimeout: number
  readonly udpStreamTimeout: number
  readonly tcpBeLiberal: boolean
  /** Makes the kernel count bytes, note when a connection began, and report the end of each. */
  readonly countsFlows?: boolean
}

/** Upstream's limit for a size that is computed from the number of cores. */
const largestComputedMax = 1_048_576
const entriesPerBucket = 4

/**
 * Sizes the connection table and sets its time-outs (CT09-CT13). Unlike upstream a failure is an
 * outcome and not fatal, a larger `min` is honoured, and a larger table that is already there
 * stays (kubernetes#141943). A time-out is written whenever it differs: the kernel's 5 days for an
 * established connection fill the table that 24 hours are meant to keep free.
 */
export function applyConntrackSettings(
  settings: ConntrackSettings,
  sysctls: Sysctls,
): readonly SysctlOutcome[] {
  const outcomes: SysctlOutcome[] = []
  const max = wantedMax(settings, cpuCount(sysctls))
  if (max > 0) {
    outcomes.push(
      sysctls.ensure({ name: 'net/netfilter/nf_conntrack_max', value: max, raiseOnly: true }),
      sysctls.ensureFile('sys/module/nf_conntrack/parameters/hashsize', {
        name: 'nf_conntrack hashsize',
        value: Math.ceil(max / entriesPerBucket),
        raiseOnly: true,
      }),
    )
  }
  return [...outcomes, ...timeoutWishes(settings).map((wish) => sysctls.ensure(wish))]
}

/** The size the table should have, or 0 to leave it (CT09). */
export function wantedMax({ maxPerCore, min }: ConntrackSettings, cpus: number): number {
  if (maxPerCore <= 0) return 0
  return Math.max(min, Math.min(maxPerCore * cpus, largestComputedMax))
}

function timeoutWishes(settings: ConntrackSettings): readonly SysctlWish[] {
  const timeouts: readonly (readonly [name: string, ms: number])[] = [
    ['tcp_timeout_established', settings.tcpEstablishedTimeout],
    ['tcp_timeout_close_wait', settings.tcpCloseWaitTimeout],
    ['udp_timeout', settings.udpTimeout],
    ['udp_timeout_stream', settings.udpStreamTimeout],
  ]
  // Rounded up: half a second must not become 0.
  const wishes: SysctlWish[] = timeouts
    .filter(([, ms]) => ms > 0)
    .map(([name, ms]) => ({
      name: `net/netfilter/nf_conntrack_${name}`,
      value: Math.ceil(ms / 1000),
    }))
  if (settings.tcpBeLiberal) {
    wishes.push({ name: 'net/netfilter/nf_conntrack_tcp_be_liberal', value: 1 })
  }
  if (settings.countsFlows === true) {
    for (const name of ['acct', 'timestamp', 'events']) {
      wishes.push({ name: `net/netfilter/nf_conntrack_${name}`, value: 1 })
    }
  }
  return wishes
}

/** The machine's CPUs, which a container's CPU mask does not hide (CT11). */
export function cpuCount(sysctls: Sysctls): number {
  const online = sysctls.readFile('sys/devices/system/cpu/online')
  return online === undefined ? availableParallelism() : countProcessors(online)
}
