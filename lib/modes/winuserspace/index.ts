import type { Config } from '../../config/config.js'
import type { LinkAddresses } from '../../kernel/link-addresses.js'
import type { Log, ModeDefinition, Finding } from '../mode.js'
import { openLink, windowsNode, type WindowsNode } from './open-link.js'
import { attempt } from '../findings.js'
import { missingSystem } from '../systems.js'

/** Userspace mode gives the parts that need no netfilter. */
type OnAddresses = (
  openLinkFor: (config: Config | undefined) => (log: Log) => Promise<LinkAddresses>,
) => Pick<ModeDefinition, 'syncPeriods' | 'planner' | 'create' | 'differences' | 'cleanup'>

/** Userspace mode whose addresses are on an interface of Windows. */
export function winuserspaceMode(onAddresses: OnAddresses): ModeDefinition {
  return {
    ...onAddresses((config) => (log) => openLink(config?.winuserspace.interface ?? '', log)),
    summary:
      'a listener in this process for every service port, at addresses of an interface of Windows',
    probe: () => probeWindows(),
  }
}

/** Nothing is required: somebody else may have added the addresses to this machine already. */
export async function probeWindows(node: WindowsNode = windowsNode): Promise<readonly Finding[]> {
  const elsewhere = missingSystem('winuserspace')
  if (elsewhere) return [elsewhere]
  const helper = { what: 'iphlpapi.dll, for addresses of Services', fix: 'netsh is used instead' }
  const interfaces = {
    what: 'interfaces of this node',
    fix: 'UDP node ports then listen on every address',
  }
  return Promise.all([
    attempt({ ...helper, required: false }, () => node.loadIpHelper().then(() => 'can be called')),
    attempt({ ...interfaces, required: false }, () =>
      Promise.resolve().then(() => Object.keys(node.interfaces()).join(', ')),
    ),
  ])
}
