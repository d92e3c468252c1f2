import { checkBindAddress, userspacePlanner } from '../modes/userspace/plan.js'
import { iptablesPlanner, offlineFacts } from '../modes/iptables/plan.js'
import { iptablesSettings } from '../modes/iptables/settings.js'
import { ipvsPlanner } from '../modes/ipvs/plan.js'
import { ipvsSettings } from '../modes/ipvs/settings.js'
import { socketPlanner } from '../modes/ebpf/plan.js'
import { renderSockets } from '../modes/ebpf/render.js'
import { ebpfSettings } from '../modes/ebpf/settings.js'
import { nftablesPlanner } from '../modes/nftables/plan.js'
import { nftablesSettings } from '../modes/nftables/settings.js'
import { renderPlan as ipvsText } from '../modes/ipvs/render.js'
import { renderPlan as iptablesText } from '../modes/iptables/render.js'
import { renderPlan as nftablesText } from '../modes/nftables/render.js'
import { renderPlan as userspaceText } from '../modes/userspace/render.js'
import { directSettings, userspaceSettings } from '../modes/userspace/settings.js'
import type { Config, ModeName } from '../config/config.js'
import type { DesiredState } from '../state/desired-state.js'

/**
 * What a mode would put on a node, as text for people. It imports only the pure files of the modes,
 * because the other files load code that talks to the kernel.
 */
export function rulesText(mode: ModeName, config: Config, states: readonly DesiredState[]): string {
  return states
    .map((state) => (states.length > 1 ? `# ${state.family}\n` : '') + textOf(mode, config, state))
    .join('\n')
}

function textOf(mode: ModeName, config: Config, state: DesiredState): string {
  switch (mode) {
    case 'iptables': {
      const settings = { ...iptablesSettings(config), ...offlineFacts }
      return iptablesText(iptablesPlanner(settings)(state))
    }
    case 'nftables':
      return nftablesText(nftablesPlanner(nftablesSettings(config))(state))
    case 'ebpf':
      return (
        renderSockets(socketPlanner(ebpfSettings(config))(state)) +
        textOf('nftables', config, state)
      )
    case 'ipvs':
      return ipvsText(ipvsPlanner(ipvsSettings(config))(state))
    case 'winuserspace': {
      const settings = directSettings(config)
      return userspaceText(userspacePlanner(settings)(state), settings)
    }
    case 'userspace': {
      const settings = userspaceSettings(config)
      if (settings.portals !== 'addresses') checkBindAddress(settings.bindAddress)
      return userspaceText(userspacePlanner(settings)(state), settings)
    }
  }
}
