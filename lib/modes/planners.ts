import { ebpfReader } from './ebpf/render.js'
import { iptablesReader } from './iptables/render.js'
import { ipvsReader } from './ipvs/render.js'
import { nftablesReader } from './nftables/render.js'
import { userspaceReader } from './userspace/render.js'
import { windowsSettings, userspaceSettings } from './userspace/settings.js'
import type { Config, ModeName } from '../config/config.js'
import type { DesiredState } from '../state/desired-state.js'
import type { PlanReader } from './mode.js'

/** The planners of all modes, without code that writes to a kernel. A browser loads them, too. */
export const planners: Readonly<Record<ModeName, (config: Config) => PlanReader>> = {
  userspace: (config) => userspaceReader(userspaceSettings(config)),
  winuserspace: (config) => userspaceReader(windowsSettings(config)),
  iptables: iptablesReader,
  ipvs: ipvsReader,
  nftables: nftablesReader,
  ebpf: (config) => ebpfReader(config, nftablesReader(config)),
}

/** What a mode would put on a node, as text for people. */
export function rulesText(mode: ModeName, config: Config, states: readonly DesiredState[]): string {
  const planner = planners[mode](config)
  return states
    .map(
      (state) =>
        (states.length > 1 ? `# ${state.family}\n` : '') + planner.render(planner.plan(state)),
    )
    .join('\n')
}
