import { KernelError, messageOf } from '../../errors.js'
import { dropTable } from '../../kernel/nftables/nft.js'
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
  probe: async () => {
    const { findings, netlink } = await probeNftables(probeDefaults(), bothFamilies)
    netlink?.close()
    return findings
  },
  planner,
  create: async (settings, context): Promise<Mode<NftablesPlan>> => {
    const { findings, writer, netlink } = await probeNftables(probeDefaults(), settings.families)
    refuseMissing(findings)
    context.log.info({ writer: writer.name }, 'nftables mode writes rules')
    const applier = new NftablesApplier({ writer, context, now: () => performance.now() })
    return {
      name: 'nftables',
      ...planner(settings),
      apply: (plan, previous) => applier.apply(plan, previous),
      run: (signal) => applier.run(signal),
      close: async () => {
        await applier.idle()
        netlink?.close()
      },
    }
  },
  cleanup: async ({ log }) => {
    const { writer, netlink } = await probeNftables(probeDefaults(), [])
    try {
      for (const family of bothFamilies) {
        const table = { family: nftFamilyOf(family), name: tableName }
        try {
          await dropTable(writer, table)
        } catch (error) {
          // A node without nft, or without the family, has nothing to remove.
          if (!(error instanceof KernelError) || error.kind === 'denied') throw error
          log.debug({ family, reason: messageOf(error) }, 'no nftables table to remove')
        }
      }
    } finally {
      netlink?.close()
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
