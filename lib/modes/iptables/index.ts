import { isDeepStrictEqual } from 'node:util'
import { readFile, writeFile } from 'node:fs/promises'
import { cleanupAll } from './cleanup.js'
import { iptablesPlanner, type IptablesPlan } from './plan.js'
import { iptablesReader, renderChanges, renderPlan } from './render.js'
import { iptablesSettings, type IptablesSettings } from './settings.js'
import { readDifferences } from './differences.js'
import { messageOf } from '../../errors.js'
import { probeKoffi } from '../findings.js'
import { openFamilies, type OpenDeps, type Opened } from './open.js'
import { openGeneration } from '../foreign-commits.js'
import { PacketCounters } from './packet-counters.js'
import { probeFamily } from './probe.js'
import { watchRules } from './watch.js'
import { withoutLog } from '../refusal-log.js'
import type { AppliedRules } from './apply.js'
import type { Applied, Mode, ModeContext, ModeDefinition } from '../mode.js'
import type { Config } from '../../config/config.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { RuleCounts } from './count.js'

interface IptablesDeps extends Partial<OpenDeps> {
  readonly readSysctl?: (name: string) => Promise<string>
  readonly writeSysctl?: (name: string, value: string) => Promise<void>
}

const withoutFlows =
  'install this package with its optional packages; without koffi a UDP client stays with such an endpoint while it sends'

/** The name is a path below /proc/sys, such as `net/ipv4/…`. */
const readSysctl = async (name: string) => (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
const writeSysctl = (name: string, value: string) => writeFile(`/proc/sys/${name}`, value)

/** Imported late: koffi does not load on every node. */
const openAccounts = async () => (await import('../../kernel/nfacct.js')).openPacketAccounts()

export function iptablesMode(given: IptablesDeps = {}): ModeDefinition {
  const deps = { openAccounts, openGeneration, ...given }
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
      const live = { settings: iptablesSettings(config) }
      const opened = await openFamilies(() => live.settings, families, context.log, deps)
      if (live.settings.logsRefused && !opened.facts.hasLog) context.log.warn({}, withoutLog)
      return new IptablesMode({ live, context, deps: given, opened })
    },
    differences: (state, config) => readDifferences(state, iptablesSettings(config), given),
    cleanup: (context) => cleanupAll(context.log, deps),
  }
}

export const mode: ModeDefinition = iptablesMode()

interface ModeParts {
  readonly opened: Opened
  /** The settings are replaced when the configuration changes. */
  readonly live: { settings: IptablesSettings }
  readonly context: ModeContext
  readonly deps: Pick<IptablesDeps, 'readSysctl' | 'writeSysctl'>
}

class IptablesMode implements Mode<IptablesPlan> {
  #planner: Mode<IptablesPlan>['plan']
  readonly render = renderPlan
  readonly renderChanges = renderChanges
  readonly #opened: Opened
  readonly #live: ModeParts['live']
  readonly #context: ModeContext
  readonly #deps: ModeParts['deps']
  readonly #counters: PacketCounters | undefined
  #hasSetLocalnet = false

  constructor({ opened, live, context, deps }: ModeParts) {
    this.#planner = iptablesPlanner({ ...live.settings, ...opened.facts })
    this.#opened = opened
    this.#live = live
    this.#context = context
    this.#deps = deps
    if (opened.accounts) this.#counters = new PacketCounters(opened.accounts, context)
  }

  plan(state: DesiredState): IptablesPlan {
    return this.#planner(state)
  }

  reconfigure(config: Config): boolean {
    const settings = iptablesSettings(config)
    if (isDeepStrictEqual(settings, this.#live.settings)) return false
    this.#live.settings = settings
    this.#planner = iptablesPlanner({ ...settings, ...this.#opened.facts })
    return true
  }

  whenQuiet(): Promise<void> {
    return this.#opened.foreign.whenQuiet()
  }

  forget(): void {
    for (const rules of this.#opened.families.values()) rules.forget()
  }

  async apply(plan: IptablesPlan): Promise<Applied> {
    const rules = this.#opened.families.get(plan.family)
    if (!rules) return { full: false, bytes: 0, objects: 0, failed: [] }
    const { written, total, refused, ...applied } = await rules.apply(plan)
    // The rule that protects 127.0.0.1 is in the kernel now, so the address may become routable.
    if (plan.usesLocalnet) await this.#setLocalnet()
    this.#measure(plan.family, written, total)
    this.#countRefusals(plan.family, refused)
    return applied
  }

  async run(signal: AbortSignal): Promise<void> {
    const { log } = this.#context
    const { families, foreign } = this.#opened
    const watching = [...families].map(([family, rules]) => {
      const changed = (what: string) =>
        this.#context.resync(`${family} iptables rules were changed: ${what}`, { byOthers: true })
      const periodMs = () => this.#live.settings.syncPeriodMs
      return watchRules({ rules, foreign, log, periodMs, changed }, signal)
    })
    await Promise.all([...watching, this.#counters?.run(signal)])
  }

  close(): Promise<void> {
    this.#counters?.close()
    return Promise.resolve()
  }

  /** IT34: sets route_localnet once, and only if it is not set. */
  async #setLocalnet(): Promise<void> {
    if (this.#hasSetLocalnet) return
    const name = 'net/ipv4/conf/all/route_localnet'
    this.#hasSetLocalnet = true
    try {
      if ((await (this.#deps.readSysctl ?? readSysctl)(name)) === '1') return
      await (this.#deps.writeSysctl ?? writeSysctl)(name, '1')
      this.#context.log.info(
        { sysctl: name },
        'set route_localnet for node ports on 127.0.0.1; --iptables-localhost-nodeports=false avoids it',
      )
    } catch (error) {
      this.#context.log.warn(
        { sysctl: name, error: messageOf(error) },
        'could not set route_localnet',
      )
    }
  }

  /** In kube-proxy such a sync fails. Its alerts shall hear of this, although others are served. */
  #countRefusals(family: IpFamily, { changes, any }: AppliedRules['refused']): void {
    const { meter } = this.#context
    const labels = { ip_family: family }
    if (any) meter.count('sync_proxy_rules_iptables_restore_failures_total', labels)
    if (changes) meter.count('sync_proxy_rules_iptables_partial_restore_failures_total', labels)
  }

  /** IT51: the numbers come from our own count, not from the kernel. */
  #measure(family: IpFamily, written: RuleCounts, total: RuleCounts): void {
    const { meter } = this.#context
    for (const table of ['nat', 'filter'] as const) {
      const labels = { ip_family: family, table }
      meter.gauge('sync_proxy_rules_iptables_total', labels, total[table])
      meter.gauge('sync_proxy_rules_iptables_last', labels, written[table])
    }
  }
}
