import { release } from 'node:os'
import { isDeepStrictEqual } from 'node:util'
import { KernelError, messageOf } from '../../errors.js'
import { Iptables } from '../../kernel/iptables.js'
import { IpSets } from '../../kernel/ipset.js'
import { IpSetMembers } from '../../kernel/ipset-members.js'
import { Ipvs } from '../../kernel/ipvs.js'
import { Links } from '../../kernel/links.js'
import { Sysctls } from '../../kernel/sysctl.js'
import type { IpFamily } from '../../state/ip.js'
import { chainNames, mayHaveRules } from '../chain-names.js'
import { jumps } from './chains.js'
import { refuseMissing } from '../findings.js'
import type { Log, Mode, ModeDefinition } from '../mode.js'
import { IpvsApplier } from './apply.js'
import { ipvsDifferences } from './differences.js'
import { readKernel } from './kernel-view.js'
import { cleanUp } from './cleanup.js'
import { ipvsPlanner, type IpvsPlan } from './plan.js'
import { ipvsReader, readerOf } from './render.js'
import { openLoaded, probeDefaults, probeIpvs } from './probe.js'
import { Rules } from './rules.js'
import { withoutLog } from '../refusal-log.js'
import { ipvsSettings, sysctlWishes, timeoutsOf, type IpvsSettings } from './settings.js'
import { Traffic } from './traffic.js'

const sweepMs = 5_000

export const mode: ModeDefinition = {
  summary: 'the kernel’s IP Virtual Server: schedulers, weights, graceful termination',
  probe: ({ log }) => probeIpvs(log),
  syncPeriods: ({ ipvs }) => ({ minMs: ipvs.minSyncPeriod, syncMs: ipvs.syncPeriod }),
  planner: ipvsReader,
  prepare: async (config, { log }) => {
    const ipvs = await openLoaded(probeDefaults)
    setKernelUp(ipvsSettings(config), ipvs, log)
    ipvs.close()
  },
  create: async (config, _, context): Promise<Mode<IpvsPlan>> => {
    const rules = new Rules()
    let settings = await possible(ipvsSettings(config), rules, context.log)
    refuseMissing('ipvs', await probeIpvs(context.log, probeDefaults, settings.scheduler))
    const ipvs = await openLoaded(probeDefaults)
    const tables = Ipvs.open()
    const edges = { ipvs, tables, links: new Links(), members: new IpSetMembers() }
    setKernelUp(settings, ipvs, context.log)
    const applier = new IpvsApplier({
      ...edges,
      sets: new IpSets(),
      rules,
      context,
      now: () => performance.now(),
      settings: () => settings,
      sweepMs,
    })
    let current = readerOf(settings)
    const traffic = new Traffic({ ipvs: tables, context })
    return {
      ...current,
      plan: (state) => current.plan(state),
      apply: (plan) => applier.apply(plan),
      forget: () => applier.forget(),
      reconfigure: (next) => {
        const { logsRefused } = settings
        const wanted = { ...ipvsSettings(next), logsRefused }
        if (isDeepStrictEqual(wanted, settings)) return false
        settings = wanted
        current = readerOf(settings)
        setKernelUp(settings, ipvs, context.log)
        return true
      },
      run: (signal) => applier.run(signal),
      countTraffic: () => traffic.read(applier.written),
      close: async () => {
        await applier.idle()
        for (const edge of Object.values(edges)) edge.close()
      },
    }
  },
  differences: async (state, config) => {
    const rules = new Rules()
    const ipvs = Ipvs.open()
    const links = new Links()
    try {
      const settings = await possible(ipvsSettings(config), rules)
      const view = await readKernel(state.family, { ipvs, links, sets: new IpSets() })
      const { excluded } = settings
      const tables = await rules.read(state.family)
      return await ipvsDifferences(ipvsPlanner(settings)(state), { view, tables, excluded })
    } finally {
      ipvs.close()
      links.close()
    }
  },
  cleanup: async ({ log }, config) => {
    const links = new Links()
    const ipvs = openIfLoaded()
    try {
      const excluded = config ? ipvsSettings(config).excluded : []
      const rules = (['nft', 'legacy'] as const).map((backend) => {
        const own = new Rules((family) =>
          Iptables.open({ family, backend, chainNames, sought: jumps }),
        )
        const remove = async (family: IpFamily) =>
          (await mayHaveRules(family, backend)) && own.remove(family)
        return { remove }
      })
      await cleanUp({ sets: new IpSets(), rules, excluded, ipvs, links, log })
    } finally {
      ipvs?.close()
      links.close()
    }
  },
}

/** Refused connections are logged only where the kernel can; everything else works without. */
async function possible(settings: IpvsSettings, rules: Rules, log?: Log): Promise<IpvsSettings> {
  const logsRefused = settings.logsRefused && (await rules.canLog())
  if (logsRefused !== settings.logsRefused) log?.warn({}, withoutLog)
  return { ...settings, logsRefused }
}

/**
 * Writes kernel settings. A failure is only a warning, because most nodes have the right values.
 */
function setKernelUp(settings: IpvsSettings, ipvs: Ipvs, log: Log): void {
  const sysctls = new Sysctls()
  for (const wish of sysctlWishes(release(), settings)) {
    const { name, wanted, before, result, reason } = sysctls.ensure(wish)
    if (result === 'failed' || result === 'missing')
      log.warn({ name, wanted, reason }, 'could not set a sysctl')
    else log.debug({ name, wanted, before, result }, 'sysctl')
  }
  const timeouts = timeoutsOf(settings)
  try {
    if (timeouts) ipvs.setTimeouts(timeouts)
  } catch (error) {
    // The kernel counts them in ticks, in 31 bits.
    const hint = 'kernels with 1000 ticks a second take at most 24 days'
    log.warn({ ...timeouts, error: messageOf(error) }, `could not set the ipvs time-outs; ${hint}`)
  }
}

function openIfLoaded(): Ipvs | undefined {
  try {
    return Ipvs.open()
  } catch (error) {
    if (error instanceof KernelError && error.kind !== 'denied') return undefined
    throw error
  }
}
