import { existsSync } from 'node:fs'
import { messageOf } from '../../errors.js'
import type { IpFamily } from '../../state/ip.js'
import type { Finding } from '../mode.js'
import { openIptables } from './portals/open-portals.js'

/** Nothing is required: without rules, addresses of this machine serve its own programs. */
export async function probeUserspace(): Promise<readonly Finding[]> {
  const families: readonly IpFamily[] = existsSync('/proc/net/if_inet6')
    ? ['IPv4', 'IPv6']
    : ['IPv4']
  const findings = await Promise.all(families.map(probeIptables))
  return [...findings, await probeKoffi()]
}

async function probeIptables(family: IpFamily): Promise<Finding> {
  const what = family === 'IPv4' ? 'iptables' : 'ip6tables'
  try {
    const { backend, version } = (await openIptables(family)).capabilities
    return { what, ok: true, required: false, seen: `${version.join('.')} ${backend}`, fix: '' }
  } catch (error) {
    const fix =
      'install iptables, load xt_nat and xt_conntrack, and run with the right to change rules ' +
      '(NET_ADMIN); without it only programs on this machine are served (--userspace-portals=addresses)'
    return { what, ok: false, required: false, seen: messageOf(error), fix }
  }
}

async function probeKoffi(): Promise<Finding> {
  const what = 'koffi, for the data path splice'
  try {
    await import('koffi')
    return { what, ok: true, required: false, seen: 'loads', fix: '' }
  } catch (error) {
    const fix = 'the data path net is used instead'
    return { what, ok: false, required: false, seen: messageOf(error), fix }
  }
}
