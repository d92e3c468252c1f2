import type { Config } from '../../config/config.js'
import type { LinkAddresses } from '../../kernel/link-addresses.js'
import type { Log, ModeDefinition } from '../mode.js'
import { openLink } from './open-link.js'
import { probeWindows } from './probe.js'

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
