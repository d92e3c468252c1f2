import { isDeepStrictEqual } from 'node:util'
import { cleanupAll } from './cleanup.js'
import { iptablesPlanner, type IptablesPlan } from './plan.js'
import { iptablesReader, renderChanges, renderPlan } from './render.js'
import { iptablesSettings, type IptablesSettings } from './settings.js'
import { readDifferences } from './differences.js'
import { probeKoffi } from '../findings.js'
import { openFamilies, type OpenDeps, type Opened } from './open.js'
import { openGeneration } from '../foreign-commits.js'
import { PacketCounters } from './packet-counters.js'
import { probeFamily } from './probe.js'
import { watchRules } from './watch.js'
import { Sysctls } from '../../kernel/sysctl.js'
import { withoutLog } from '../refusal-log.js'
import type { AppliedRules } from './apply.js'
import type { Log, Meter, Mode, ModeContext, ModeDefinition } from '../mode.js'
import type { IpFamily } from '../../state/ip.js'

interface IptablesDeps extends Partial<OpenDeps> {
  readonly sysctls?: Pick<Sysctls, 'ensure'>
}

const withoutFlows =
  'install this package with its optional packages; without koffi a UDP client stays with such an endpoint while it sends'

/** Imported late: koffi does not load on every node. */
const openAccounts = async () => (await import('../../kernel/nfacct.js')).openPacketAccounts()

export function iptablesMode(given: IptablesDeps = {}): ModeDefinition {
  const deps = { openAccounts, openGeneration, sysctls: new Sysctls(), ...given }
  return {
    summary: 'iptables rules as everybody knows them; works wherever iptables does',
    probe: async ({ log }) => [
      ...(await probeFamily('IPv4', log, given)),
      ...(await probeFamily('IPv6', log, given)),
      await probeKoffi('UDP clients of endpoints that are gone', withoutFlows),
    ],
    syncPeriods: ({ iptables }) => ({ minMs: iptables.minSyncPeriod, syncMs: iptables.syncPeriod }),
    planner: iptablesReader,
    create: async (config, families, context) => {
      const live: ModeParts['live'] = { settings: iptablesSettings(config) }
      const hasEnded = () => live.ending?.aborted === true
      const opening = { ...deps, hasEnded }
      const opened = await openFamilies(() => live.settings, families, context.log, opening)
      if (live.settings.logsRefused && !opened.facts.hasLog) context.log.warn({}, withoutLog)
      return modeOf({ live, context, opened, sysctls: deps.sysctls })
    },
    differences: (state, config) => readDifferences(state, iptablesSettings(config), given),
    cleanup: (context) => cleanupAll(context.log, deps),
  }
}

export const mode: ModeDefinition = iptablesMode()

interface ModeParts {
  readonly opened: Opened
  /** The settings are replaced when the configuration changes. */
  readonly live: { settings: IptablesSettings; ending?: AbortSignal }
  readonly context: ModeContext
  readonly sysctls: Pick<Sysctls, 'ensure'>
}

function modeOf({ opened, live, context, sysctls }: ModeParts): Mode<IptablesPlan> {
  const { families, facts, foreign, accounts } = opened
  const { log, meter } = context
  const counters = accounts && new PacketCounters(accounts, context)
  let planner = iptablesPlanner({ ...live.settings, ...facts })
  let hasSetLocalnet = false
  return {
    plan: (state) => planner(state),
    render: renderPlan,
    renderChanges,
    reconfigure: (config) => {
      const settings = iptablesSettings(config)
      if (isDeepStrictEqual(settings, live.settings)) return false
      live.settings = settings
      planner = iptablesPlanner({ ...settings, ...facts })
      return true
    },
    whenQuiet: () => foreign.whenQuiet(),
    forget: () => families.forEach((rules) => rules.forget()),
    apply: async (plan) => {
      const rules = families.get(plan.family)
      if (!rules) return { full: false, bytes: 0, objects: 0, failed: [] }
      const { written, total, refused, ...applied } = await rules.apply(plan)
      // The rule that protects 127.0.0.1 is in the kernel now, so the address may become routable.
      if (plan.usesLocalnet && !hasSetLocalnet) setLocalnet(sysctls, log)
      hasSetLocalnet ||= plan.usesLocalnet
      measure(meter, plan.family, { written, total, refused })
      return applied
    },
    run: async (signal) => {
      live.ending = signal
      const periodMs = () => live.settings.syncPeriodMs
      const watching = [...families].map(([family, rules]) => {
        const changed = (what: string) =>
          context.resync(`${family} iptables rules were changed: ${what}`, { byOthers: true })
        return watchRules({ rules, foreign, log, periodMs, changed }, signal)
      })
      await Promise.all([...watching, counters?.run(signal)])
    },
    close: () => Promise.resolve(counters?.close()),
  }
}

/** IT34: sets route_localnet, unless it is set. */
function setLocalnet(sysctls: Pick<Sysctls, 'ensure'>, log: Log): void {
  const sysctl = 'net/ipv4/conf/all/route_localnet'
  const { result, reason } = sysctls.ensure({ name: sysctl, value: 1 })
  if (result === 'written') {
    log.info(
      { sysctl },
      'set route_localnet for node ports on 127.0.0.1; --iptables-localhost-nodeports=false avoids it',
    )
  } else if (result !== 'unchanged') {
    log.warn({ sysctl, error: reason }, 'could not set route_localnet')
  }
}

/** IT51: the numbers come from our own count, not from the kernel. */
function measure(
  meter: Meter,
  family: IpFamily,
  { written, total, refused }: Pick<AppliedRules, 'written' | 'total' | 'refused'>,
): void {
  const labels = { ip_family: family }
  for (const table of ['nat', 'filter'] as const) {
    const ofTable = { ...labels, table }
    meter.gauge('sync_proxy_rules_iptables_total', ofTable, total[table])
    meter.gauge('sync_proxy_rules_iptables_last', ofTable, written[table])
  }
  // In kube-proxy such a sync fails. Its alerts shall hear of this, although others are served.
  const { any, changes } = refused
  if (any) meter.count('sync_proxy_rules_iptables_restore_failures_total', labels)
  if (changes) meter.count('sync_proxy_rules_iptables_partial_restore_failures_total', labels)
}
