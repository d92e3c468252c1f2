import { checkBindAddress, UserspacePlanner } from '../modes/userspace/plan.js'
import { ipvsPlanner } from '../modes/ipvs/plan.js'
import { nftablesPlanner } from '../modes/nftables/plan.js'
import { offlinePlanner } from '../modes/iptables/plan.js'
import { renderPlan as ipvsText } from '../modes/ipvs/render.js'
import { renderPlan as iptablesText } from '../modes/iptables/render.js'
import { renderPlan as nftablesText } from '../modes/nftables/render.js'
import { renderPlan as userspaceText } from '../modes/userspace/render.js'
import type { DesiredState } from '../state/desired-state.js'
import type { ModeName, ModeSettings } from '../modes/mode.js'

/**
 * What a mode would put on a node, as text for people. It uses the pure half of the modes only:
 * their definitions load what speaks to a kernel.
 */
export function rulesText(
  mode: ModeName,
  settings: ModeSettings,
  states: readonly DesiredState[],
): string {
  return states
    .map(
      (state) => (states.length > 1 ? `# ${state.family}\n` : '') + textOf(mode, settings, state),
    )
    .join('\n')
}

function textOf(mode: ModeName, settings: ModeSettings, state: DesiredState): string {
  switch (mode) {
    case 'iptables':
      return iptablesText(offlinePlanner(settings).plan(state))
    case 'nftables':
      return nftablesText(nftablesPlanner(settings)(state))
    case 'ipvs':
      return ipvsText(ipvsPlanner(settings)(state))
    case 'userspace': {
      const { portals, bindAddress } = settings.userspace
      if (portals !== 'addresses') checkBindAddress(bindAddress)
      return userspaceText(new UserspacePlanner(settings).plan(state), settings)
    }
  }
}
