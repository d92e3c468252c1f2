import { KernelError, messageOf } from '../../errors.js'
import { dropTable, Nft } from '../../kernel/nftables/nft.js'
import type { Finding, Mode, ModeDefinition, ModeSettings, Planner } from '../mode.js'
import { NftablesApplier } from './apply.js'
import { nftFamilyOf, tableName } from './names.js'
import { nftablesPlanner, type NftablesPlan } from './plan.js'
import { probeDefaults, probeNftables } from './probe.js'
import { renderChanges, renderPlan } from './render.js'

const bothFamilies = ['IPv4', 'IPv6'] as const

export const mode: ModeDefinition = {
  name: 'nftables',
  summary: 'one table of the kernel per family, changed in place by small transactions',
  probe: () => probeNftables({ ...probeDefaults, nft: new Nft() }, bothFamilies),
  planner,
  create: async (settings, context): Promise<Mode<NftablesPlan>> => {
    const nft = new Nft()
    refuseMissing(await probeNftables({ ...probeDefaults, nft }, settings.families))
    const applier = new NftablesApplier({ writer: nft, context, now: () => performance.now() })
    return {
      name: 'nftables',
      ...planner(settings),
      apply: (plan, previous) => applier.apply(plan, previous),
      run: (signal) => applier.run(signal),
      close: () => applier.idle(),
    }
  },
  cleanup: async ({ log }) => {
    const nft = new Nft()
    for (const family of bothFamilies) {
      const table = { family: nftFamilyOf(family), name: tableName }
      try {
        await dropTable(nft, table)
      } catch (error) {
        // A node without nft, or without the family, has nothing to remove.
        if (!(error instanceof KernelError) || error.kind === 'denied') throw error
        log.debug({ family, reason: messageOf(error) }, 'no nftables table to remove')
      }
    }
  },
}

function planner(settings: ModeSettings): Planner<NftablesPlan> {
  return { plan: nftablesPlanner(settings), render: renderPlan, renderChanges }
}

function refuseMissing(findings: readonly Finding[]): void {
  const missing = findings.filter(({ ok, required }) => required && !ok)
  const [first] = missing
  if (!first) return
  const kind = first.seen.includes('not permitted') ? 'denied' : 'unsupported'
  throw new KernelError(
    kind,
    `use nftables mode: ${missing.map(({ what, seen, fix }) => `${what}: ${seen}; ${fix}`).join('; ')}`,
  )
}
