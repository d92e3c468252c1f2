import { randomUUID } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { KernelError, messageOf } from '../../errors.js'
import { runCommand } from '../../kernel/command.js'
import { NftMonitor } from '../../kernel/nftables/monitor.js'
import { dropTable, listedRules } from '../../kernel/nftables/nft.js'
import { watchCommits } from '../../kernel/nftables-netlink/commit-watch.js'
import type { NfTables } from '../../kernel/nftables-netlink/nf-tables.js'
import type { TableRef } from '../../kernel/nftables/model.js'
import { ipFamilies, type IpFamily } from '../../state/ip.js'
import { refuseMissing } from '../findings.js'
import type { Mode, ModeContext, ModeDefinition } from '../mode.js'
import { Admission } from './admission.js'
import { NftablesApplier } from './apply.js'
import { nftablesDifferences } from './differences.js'
import { Guard, reportForeign, type GuardDeps, type Watcher } from './guard.js'
import { forgetAll, knownByFamily } from '../known.js'
import { LocalhostPorts } from './localhost-ports.js'
import { nftFamilyOf, tableName } from './names.js'
import { nftablesPlanner, type NftablesPlan } from './plan.js'
import { nftablesReader, readerOf } from './render.js'
import {
  canLog,
  openNftables,
  probeDefaults,
  probeNftables,
  writerVariable,
  type Probed,
} from './probe.js'
import type { Difference } from '../difference.js'
import { nftablesSettings, type NftablesSettings } from './settings.js'

export const mode: ModeDefinition = {
  summary: 'one table of the kernel per family, changed in place by small transactions',
  probe: async () => {
    const { findings, netlink } = await probeNftables(probeDefaults(), ipFamilies)
    netlink?.close()
    return findings
  },
  syncPeriods: ({ nftables }) => ({ minMs: nftables.minSyncPeriod, syncMs: nftables.syncPeriod }),
  planner: nftablesReader,
  create: async (config, families, context): Promise<Mode<NftablesPlan>> => {
    let settings = nftablesSettings(config)
    const probed = await openNftables(probeDefaults(), families)
    refuseMissing('nftables', probed.findings)
    const { writer, clients, netlink } = probed
    context.log.info({ writer: writer.name }, 'nftables mode writes rules')
    const known = knownByFamily<NftablesPlan>()
    const tables = families.map((family) => ({ family: nftFamilyOf(family), name: tableName }))
    const verifyEveryMs = () => settings.syncPeriodMs * syncPeriodsPerVerify
    const watched = { tables, context, known, verifyEveryMs }
    const guard = watcherOf(netlink, watched)
    const applier = new NftablesApplier({
      known,
      writer: guard.guarded(writer),
      reader: clients,
      ...(netlink ? { tables: netlink.reader } : {}),
      context,
      now: () => performance.now(),
    })
    const can = await abilities(probed, { wantsLog: settings.logsRefused, families, context })
    let current = readerOf(can(settings))
    const localhost = localhostPorts(settings, context)
    return {
      ...current,
      plan: (state) => current.plan(state),
      forget: () => forgetAll(known),
      reconfigure: (next) => {
        const wanted = nftablesSettings(next)
        if (isDeepStrictEqual(wanted, settings)) return false
        settings = wanted
        current = readerOf(can(settings))
        return true
      },
      apply: async (plan) => {
        const applied = await applier.apply(plan)
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
  differences: async (state, config) => {
    // Rules are read by netlink, even where the program nft writes them.
    const deps = { ...probeDefaults(), env: { ...process.env, [writerVariable]: undefined } }
    const { findings, netlink, hasHash, writer } = await openNftables(deps, [state.family])
    if (!netlink) {
      const why = findings.find(({ ok }) => !ok)
      throw new KernelError('unsupported', `read nftables: ${why?.seen ?? ''}; ${why?.fix ?? ''}`)
    }
    try {
      const settings = nftablesSettings(config)
      const logsRefused = settings.logsRefused && (await canLog(writer, [state.family]))
      const plan = nftablesPlanner({ ...settings, hasHash, logsRefused })(state)
      const reading = { reader: netlink.reader, pause: () => setImmediate(), show: shownBy(plan) }
      const differences: Difference[] = []
      for await (const each of nftablesDifferences(plan, reading)) differences.push(each)
      return differences
    } finally {
      netlink.close()
    }
  },
  cleanup: async ({ log }) => {
    const { writer, netlink } = await openNftables(probeDefaults(), [])
    try {
      for (const family of ipFamilies) {
        const table = { family: nftFamilyOf(family), name: tableName }
        try {
          // A transaction of nothing makes every program that watches nf_tables read its rules again.
          if (netlink && !(await netlink.reader.exists(table))) continue
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

interface Wishes {
  readonly wantsLog: boolean
  readonly families: readonly IpFamily[]
  readonly context: ModeContext
}

/** Takes from settings what the kernel cannot do. */
async function abilities(
  { writer, hasHash }: Pick<Probed, 'writer' | 'hasHash'>,
  { wantsLog, families, context: { log } }: Wishes,
) {
  if (!hasHash) log.warn({}, withoutHash)
  const hasLog = wantsLog && (await canLog(writer, families))
  if (wantsLog && !hasLog) log.warn({}, withoutLog)
  return (settings: NftablesSettings) => ({
    ...settings,
    hasHash,
    logsRefused: settings.logsRefused && hasLog,
  })
}

const withoutLog =
  'the kernel cannot log to this program, so refused connections are not counted; load nfnetlink_log'
const withoutHash = 'no nft_hash: balance by source-hash or maglev becomes random'

/** The rules of a chain as `nft` prints them; undefined if it is not installed. */
const shownBy =
  ({ table }: NftablesPlan) =>
  async (chain: string): Promise<readonly string[] | undefined> => {
    const argv = ['-s', 'list', 'chain', table.family, table.name, chain]
    const listed = await runCommand('nft', argv).catch(() => undefined)
    return listed?.code === 0 ? listedRules(listed.stdout) : undefined
  }

/** The least and the usual time between comparisons with the kernel, see Guard. */
const verifyTickMs = 5_000
const syncPeriodsPerVerify = 10

const notHeard = 'the program `nft monitor` did not listen, so changes by others may be unknown'

interface Watched extends Pick<GuardDeps, 'context' | 'known' | 'verifyEveryMs'> {
  readonly tables: readonly TableRef[]
}

/** Without netlink the program nft reports what others do. Kernel and plan are not compared. */
function watcherOf(netlink: NfTables | undefined, { tables, ...deps }: Watched): Watcher {
  if (!netlink) {
    return new NftMonitor({
      tables,
      mark: `written-by-${randomUUID()}`,
      onForeign: () => reportForeign(deps.context, 'somebody else'),
      onMissed: () => deps.context.resync(notHeard, { byOthers: false }),
    })
  }
  const kernel = { port: netlink.port(), generation: () => netlink.generation() }
  const watch: GuardDeps['watch'] = (handlers) => watchCommits({ tables, ...kernel, ...handlers })
  return new Guard({ ...deps, reader: netlink.reader, watch, tickMs: verifyTickMs })
}

function localhostPorts(
  { localhostNodePorts }: NftablesSettings,
  { log, meter }: ModeContext,
): LocalhostPorts | undefined {
  if (!localhostNodePorts) return undefined
  const now = () => performance.now()
  const admission = new Admission({ log, now })
  return new LocalhostPorts({ log, meter, random: Math.random, now, admission })
}
