import { parseCidr } from '../../state/ip.js'
import type { Config } from '../../config/config.js'
import type { IpvsTimeouts } from '../../kernel/ipvs.js'
import type { SysctlWish } from '../../kernel/sysctl.js'

/** Each comparison reads every table. */
const shortestVerifyMs = 2_000

/** The part of the configuration that this mode reads. */
export type IpvsSettings = Readonly<ReturnType<typeof ipvsSettings>>

/** Masquerading is read from the iptables section, as upstream (section 11). */
export function ipvsSettings({ ipvs, iptables, conntrack, flows }: Config) {
  return {
    masqueradeBit: iptables.masqueradeBit,
    masqueradeAll: iptables.masqueradeAll,
    dropsInvalid: !conntrack.tcpBeLiberal,
    /** Time between two comparisons with the kernel. */
    verifyMs: Math.max(ipvs.syncPeriod, shortestVerifyMs),
    scheduler: ipvs.scheduler === '' ? 'rr' : ipvs.scheduler,
    excluded: ipvs.excludeCIDRs.flatMap((text) => parseCidr(text) ?? []),
    strictArp: ipvs.strictARP,
    tcpTimeoutMs: ipvs.tcpTimeout,
    tcpFinTimeoutMs: ipvs.tcpFinTimeout,
    udpTimeoutMs: ipvs.udpTimeout,
    /** After this time connections are cut; 0: never, as upstream (IP26). */
    gracePeriodMs: ipvs.gracefulPeriod,
    /** What is refused or dropped is logged to the proxy. */
    logsRefused: flows.enabled,
  }
}

/** The kernel settings this mode works with (IP06, IP07). */
export function sysctlWishes(
  kernelRelease: string,
  { strictArp }: Pick<IpvsSettings, 'strictArp'>,
): readonly SysctlWish[] {
  const wishes: SysctlWish[] = [
    // Without this setting masquerading does not see what IPVS forwards.
    { name: 'net/ipv4/vs/conntrack', value: 1 },
    { name: 'net/ipv4/vs/expire_nodest_conn', value: 1 },
    { name: 'net/ipv4/vs/expire_quiescent_template', value: 1 },
    { name: 'net/ipv4/ip_forward', value: 1 },
  ]
  const [major = 0, minor = 0] = kernelRelease.split('.').map(Number)
  const version = major * 1000 + minor
  // Since kernel 5.9 a reused port goes to another server without a delay of one second.
  if (version >= 4001 && version < 5009) {
    wishes.push({ name: 'net/ipv4/vs/conn_reuse_mode', value: 0 })
  }
  if (strictArp) {
    // MetalLB needs that other devices do not announce the addresses of the dummy device.
    wishes.push(
      { name: 'net/ipv4/conf/all/arp_ignore', value: 1 },
      { name: 'net/ipv4/conf/all/arp_announce', value: 2 },
    )
  }
  return wishes
}

/** The time-outs to set, or undefined when none is configured (IP08). */
export function timeoutsOf(ipvs: IpvsSettings): IpvsTimeouts | undefined {
  const seconds = (ms: number) => Math.ceil(ms / 1000)
  const timeouts = {
    tcp: seconds(ipvs.tcpTimeoutMs),
    tcpFin: seconds(ipvs.tcpFinTimeoutMs),
    udp: seconds(ipvs.udpTimeoutMs),
  }
  return timeouts.tcp + timeouts.tcpFin + timeouts.udp > 0 ? timeouts : undefined
}
