import { Sysctls } from './sysctl.js'
import type { IpFamily } from '../state/ip.js'

/** What the kernel of this node does to connections, whatever the rules are. */

/** New connections find no room in the connection table; those to the proxy itself, too. */
export function fullTable(sysctls = new Sysctls(), share = 0.99): readonly string[] {
  const read = (name: string) => sysctls.readFile(`proc/sys/net/netfilter/nf_conntrack_${name}`)
  const [count, max] = [Number(read('count')), Number(read('max'))]
  // The kernel counts before it looks, so a full table has some entries more or less.
  if (!(max > 0) || !(count >= max * share)) return []
  return [
    `the connection table is full (${count} of ${max}, net.netfilter.nf_conntrack_max), so the kernel drops new connections, or unanswered ones for them; raise conntrack.maxPerCore`,
  ]
}

const forwarding = {
  IPv4: { folder: 'ipv4', name: 'net.ipv4.ip_forward', file: 'ipv4/ip_forward' },
  IPv6: {
    ...{ folder: 'ipv6', name: 'net.ipv6.conf.all.forwarding', file: 'ipv6/conf/all/forwarding' },
  },
} as const satisfies Record<IpFamily, unknown>

/**
 * Packets of others reach no endpoint. Those of the node itself need no forwarding. Each interface
 * has a setting of its own for what comes in there; without one, none may forward.
 */
export function notForwarding(
  family: IpFamily,
  { sysctls = new Sysctls(), inInterface = '' } = {},
): readonly string[] {
  const { folder, name, file } = forwarding[family]
  const conf = `proc/sys/net/${folder}/conf`
  const isOff = (each: string) => sysctls.readFile(`${conf}/${each}/forwarding`) === '0'
  const isAllOff = sysctls.readFile(`proc/sys/net/${file}`) === '0'
  const isSaid =
    inInterface === ''
      ? isAllOff && sysctls.list(conf).every((each) => notInterfaces.has(each) || isOff(each))
      : isOff(inInterface)
  if (!isSaid) return []
  const [setting, what] = isAllOff
    ? [name, 'packet of others on, to an endpoint or back']
    : [`net.${folder}.conf.${inInterface}.forwarding`, `packet on that comes in by ${inInterface}`]
  return [`${setting} is 0, so this node passes no ${what}; set it to 1`]
}

const notInterfaces: ReadonlySet<string> = new Set(['all', 'default', 'lo'])
