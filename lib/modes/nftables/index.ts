import { setImmediate } from 'node:timers/promises'
import { KernelError, messageOf } from '../../errors.js'
import { runCommand } from '../../kernel/command.js'
import { NftMonitor } from '../../kernel/nftables/monitor.js'
import { dropTable, listedRules } from '../../kernel/nftables/nft.js'
import { watchCommits } from '../../kernel/nftables-netlink/commit-watch.js'
import type { NfTables } from '../../kernel/nftables-netlink/nf-tables.js'
import type { Finding, Mode, ModeContext, ModeDefinition, ModeSettings, Planner } from '../mode.js'
import { Admission } from './admission.js'
import { NftablesApplier } from './apply.js'
import { compileLate } from './compile-late.js'
import { nftablesDifferences } from './differences.js'
import { Guard, guardedBy, reportForeign, type GuardDeps, type Watcher } from './guard.js'
import { LocalhostPorts } from './localhost-ports.js'
import { nftFamilyOf, tableName } from './names.js'
import { nftablesPlanner, type NftablesPlan } from './plan.js'
import { probeDefaults, probeNftables } from './probe.js'
import { missingPlace, type Difference } from '../difference.js'
import { planLines, renderChanges, renderPlan } from './render.js'

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
    const probed = await probeNftables(probeDefaults(), settings.families)
    const { findings, writer, clients, netlink } = probed
    refuseMissing(findings)
    compileLate()
    context.log.info({ writer: writer.name }, 'nftables mode writes rules')
    const guard: Watcher = netlink
      ? guardOf(netlink, { settings, context, applied: () => applier.applied })
      : monitored(settings, context)
    const applier: NftablesApplier = new NftablesApplier({
      writer: guard.guarded(writer),
      reader: clients,
      context,
      now: () => performance.now(),
    })
    const localhost = settings.localhostNodePorts
      ? new LocalhostPorts({
          log: context.log,
          random: Math.random,
          admission: new Admission({ log: context.log, now: () => performance.now() }),
        })
      : undefined
    return {
      name: 'nftables',
      ...planner(settings),
      apply: async (plan, previous) => {
        const applied = await applier.apply(plan, previous)
        return localhost ? { ...applied, failed: await localhost.update(plan) } : applied
      },
      run: async (signal) => {
        await Promise.all([applier.run(signal), guard.run(signal)])
      },
      close: async () => {
        localhost?.close()
        await applier.idle()
        netlink?.close()
      },
    }
  },
  differences: async (state, settings) => {
    const { findings, netlink } = await probeNftables(probeDefaults(), [state.family])
    if (!netlink) {
      const why = findings.find(({ ok }) => !ok)
      throw new KernelError('unsupported', `read nftables: ${why?.seen ?? ''}; ${why?.fix ?? ''}`)
    }
    try {
      const plan = nftablesPlanner(settings)(state)
      const deps = { reader: netlink.reader, pause: () => setImmediate(), show: shownBy(plan) }
      const differences: Difference[] = []
      for await (const each of nftablesDifferences(plan, deps)) differences.push(each)
      return differences
    } catch (error) {
      if (!(error instanceof KernelError) || error.kind !== 'not-found') throw error
      const name = `${nftFamilyOf(state.family)} ${tableName}`
      return [missingPlace({ kind: 'table', name }, '')]
    } finally {
      netlink.close()
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

/** Rules in the words of `nft`, where it is installed. */
const shownBy =
  ({ table }: NftablesPlan) =>
  async (chain: string): Promise<readonly string[] | undefined> => {
    const argv = ['-s', 'list', 'chain', table.family, table.name, chain]
    const listed = await runCommand('nft', argv).catch(() => undefined)
    return listed?.code === 0 ? listedRules(listed.stdout) : undefined
  }

const tablesOf = ({ families }: ModeSettings) =>
  families.map((family) => ({ family: nftFamilyOf(family), name: tableName }))

/** The least and the usual time between comparisons with the kernel, see Guard. */
const verifyTickMs = 5_000
const syncPeriodsPerVerify = 10

function guardOf(
  netlink: NfTables,
  {
    settings,
    context,
    applied,
  }: Pick<GuardDeps, 'context' | 'applied'> & { readonly settings: ModeSettings },
): Guard {
  const tables = tablesOf(settings)
  return new Guard({
    context,
    applied,
    reader: netlink.reader,
    watch: (handlers) =>
      watchCommits({ tables, generation: () => netlink.generation(), ...handlers }),
    tickMs: verifyTickMs,
    verifyEveryMs: settings.syncPeriodMs * syncPeriodsPerVerify,
  })
}

/** Without netlink the program tells what others do; what the kernel holds is not compared. */
function monitored(settings: ModeSettings, context: ModeContext): Watcher {
  const monitor = new NftMonitor({
    tables: tablesOf(settings),
    onForeign: () => reportForeign(context, 'somebody else changed table kube-proxy'),
  })
  return {
    guarded: (writer) => guardedBy(monitor, writer),
    run: (signal) => monitor.run(signal),
  }
}

function planner(settings: ModeSettings): Planner<NftablesPlan> {
  return { plan: nftablesPlanner(settings), render: renderPlan, lines: planLines, renderChanges }
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
