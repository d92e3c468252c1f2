import { bytecode, Iptables, rule } from '../../kernel/iptables.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Difference } from '../difference.js'
import type { IptablesSettings } from './settings.js'
import { iptablesDifferences } from './differences.js'
import { foundIn } from './full-sync.js'
import { kernelError } from '../iptables-error.js'
import { ownTables } from './apply.js'
import { iptablesPlanner } from './plan.js'
import type { OpenDeps } from './open.js'

/** What the kernel holds against what it should hold. Reads only. */
export async function readDifferences(
  state: DesiredState,
  settings: IptablesSettings,
  deps: Partial<OpenDeps>,
): Promise<readonly Difference[]> {
  const { family } = state
  const { run, backend = 'auto' } = deps
  try {
    const iptables = await Iptables.open({ family, backend, ...(run ? { run } : {}) })
    await iptables.check()
    const saved = []
    for (const table of ownTables) saved.push(...(await iptables.save(table)))
    const probe = rule({ matches: [bytecode([[6, 0, 0, 0]])], jump: 'RETURN' })
    const plan = iptablesPlanner({
      ...settings,
      hasBpf: await iptables.supports('nat', probe),
      randomFully: iptables.capabilities.randomFully,
      // Whoever wrote the rules has made the objects they count with; asking would make them, too.
      hasAccounting: saved.some(({ chains }) =>
        [...chains.values()].some(({ rules }) => rules.some((text) => text.includes(' nfacct '))),
      ),
    })
    return iptablesDifferences(plan(state), foundIn(saved))
  } catch (error) {
    throw kernelError(error, `compare ${family} iptables rules`)
  }
}
