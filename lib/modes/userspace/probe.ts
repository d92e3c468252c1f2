import { existsSync } from 'node:fs'
import type { Iptables } from '../../kernel/iptables.js'
import { ipFamilies, type IpFamily } from '../../state/ip.js'
import { attempt, probeKoffi } from '../findings.js'
import type { Finding, Log } from '../mode.js'
import { waitToProbe } from '../xtables-lock.js'
import { openIptables } from './portals/open-portals.js'
import { SourceRouting } from './portals/source-routing.js'

/** Nothing is required: without rules, addresses of this machine serve its own programs. */
export async function probeUserspace({ log }: { readonly log: Log }): Promise<readonly Finding[]> {
  const families = existsSync('/proc/net/if_inet6') ? ipFamilies : (['IPv4'] as const)
  // To open iptables starts a dozen programs.
  const onLocked = waitToProbe(log)
  const opened = families.map((family) => ({
    family,
    opening: openIptables(family, undefined, onLocked),
  }))
  const koffi = probeKoffi('the data path splice', 'the data path net is used instead')
  return Promise.all([...opened.map(probeIptables), ...opened.map(probeSources), koffi])
}

interface Opened {
  readonly family: IpFamily
  readonly opening: Promise<Iptables>
}

function probeIptables({ family, opening }: Opened): Promise<Finding> {
  const what = family === 'IPv4' ? 'iptables' : 'ip6tables'
  const fix =
    'install iptables, load xt_nat and xt_conntrack, and run with the right to change rules ' +
    '(NET_ADMIN); without it only programs on this machine are served (--userspace-portals=addresses)'
  return attempt({ what, required: false, fix }, async () => {
    const { backend, version } = (await opening).capabilities
    return `${version.join('.')} ${backend}`
  })
}

function probeSources({ family, opening }: Opened): Promise<Finding> {
  const what = `the client's address for endpoints, ${family}`
  const fix =
    'endpoints see this node as their client; to keep the address (--userspace-source-address), ' +
    'run with NET_ADMIN, and load xt_socket, xt_mark and xt_connmark'
  return attempt({ what, required: false, fix }, async () => {
    await new SourceRouting(family, () => opening).probe()
    return 'can be kept'
  })
}
