import { offlinePlanner } from '../../modes/iptables/plan.js'
import { nftablesPlanner } from '../../modes/nftables/plan.js'
import { ownerText } from '../../modes/difference.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { ModeName, ModeSettings } from '../../modes/mode.js'
import type { OwnerOfChain } from './story.js'

/** The owner of each chain, in modes where service ports have their own chains. */
export function chainOwners(
  mode: ModeName,
  states: readonly DesiredState[],
  settings: ModeSettings,
): OwnerOfChain {
  const owners = new Map<string, string>()
  for (const state of states) {
    if (mode === 'iptables') {
      const planner = offlinePlanner(settings)
      for (const { key, chains } of planner.plan(state).services.values()) {
        for (const { chain } of chains) owners.set(chain, ownerText(key))
      }
    } else if (mode === 'nftables') {
      for (const [key, { chains }] of nftablesPlanner(settings)(state).parts) {
        for (const { name } of chains) owners.set(name, ownerText(key))
      }
    }
  }
  return (chain) => owners.get(chain) ?? ownerInName(chain)
}

/** Chains of nftables mode carry the name: `service-SUSTUHLJ-default/web/tcp/http`. */
export function ownerInName(chain: string): string {
  const found = /^[a-z]+-[A-Z2-7]{8}-([^/]+)\/([^/]+)\/(?:tcp|udp|sctp)\/([^/_]*)/.exec(chain)
  if (!found) return ''
  const [, namespace = '', name = '', port = ''] = found
  return `${namespace}/${name}${port === '' ? '' : `:${port}`}`
}
