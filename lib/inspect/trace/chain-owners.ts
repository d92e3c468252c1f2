import { iptablesPlanner, offlineFacts } from '../../modes/iptables/plan.js'
import { iptablesSettings } from '../../modes/iptables/settings.js'
import { nftablesPlanner } from '../../modes/nftables/plan.js'
import { nftablesSettings } from '../../modes/nftables/settings.js'
import { ownerText } from '../../modes/difference.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Config, ModeName } from '../../config/config.js'
import type { OwnerOfChain } from './story.js'

/** The owner of each chain, in modes where service ports have their own chains. */
export function chainOwners(
  mode: ModeName,
  states: readonly DesiredState[],
  config: Config,
): OwnerOfChain {
  const owners = new Map<string, string>()
  for (const state of states) {
    if (mode === 'iptables') {
      const plan = iptablesPlanner({ ...iptablesSettings(config), ...offlineFacts })(state)
      for (const { key, chains } of plan.services.values()) {
        for (const { chain } of chains) owners.set(chain, ownerText(key))
      }
    } else if (mode === 'nftables' || mode === 'ebpf') {
      for (const [key, { chains }] of nftablesPlanner(nftablesSettings(config))(state).parts) {
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
