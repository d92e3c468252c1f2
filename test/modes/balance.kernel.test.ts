import { execFileSync } from 'node:child_process'
import t from 'tap'
import { configWith } from '../../lib/config/load.js'
import { modeLoaders } from '../../lib/modes/registry.js'
import { balances } from '../../lib/state/balance.js'
import { substitutes } from '../../lib/config/tracker-settings.js'
import { contextOf } from '../support/mode-context.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { service, states } from '../support/states.js'

/**
 * The kernel holds what the plan says for every word of `kube-proxy-ts/balance`, also after
 * changes.
 */

const { context: modeContext } = contextOf()
const skip = enterPrivateNetns() ?? false
if (skip === false) execFileSync('ip', ['link', 'set', 'lo', 'up'])

for (const name of ['nftables', 'iptables'] as const) {
  t.test(`${name} mode: the kernel holds every word as it was written`, { skip }, async (t) => {
    const definition = await modeLoaders[name]()
    const config = configWith({})
    for (const family of ['IPv4', 'IPv6'] as const) {
      const mode = await definition.create(config, [family], modeContext)
      const cluster = states(family, { substitutes: substitutes[name] })
      const put = (count: number, affinitySeconds?: number) =>
        balances.forEach((balance, index) =>
          cluster.put(
            service({
              ...{ name: balance, options: { balance }, endpoints: count, affinitySeconds },
              clusterIp: family === 'IPv4' ? `10.96.0.${index + 10}` : `fd00:96::${index + 10}`,
              nodePort: index % 2 === 0 ? 30_000 + index : 0,
            }),
          ),
        )
      for (const [count, affinity] of [[3], [2], [3, 60], [1], [2], [0]] as const) {
        put(count, affinity)
        const state = cluster.take()
        t.same((await mode.apply(mode.plan(state))).failed, [])
        const found = await definition.differences(state, config)
        // Chains without a jump to them are deleted a moment later (NF20).
        const wrong = found.filter((each) => !('isHarmless' in each))
        t.same(wrong, [], `${family} ${count} endpoints`)
      }
      await mode.close()
    }
    await definition.cleanup(modeContext)
  })
}
