import { readFile, writeFile } from 'node:fs/promises'
import { cleanupAll } from './cleanup.js'
import { IptablesPlanner } from './plan.js'
import { readDifferences } from './differences.js'
import { messageOf } from '../../errors.js'
import { openChannel } from '../../kernel/netlink/channel.js'
import { openFamilies, type KernelFacts, type OpenDeps, type Opened } from './open.js'
import { openPacketAccounts } from '../../kernel/nfacct.js'
import { PacketCounters } from './packet-counters.js'
import { probeFamily } from './probe.js'
import { protocols } from '../../kernel/netlink/protocol.js'
import { readGeneration } from '../../kernel/nftables-netlink/generation.js'
import { renderChanges, renderPlan } from './render.js'
import { watchRules } from './watch.js'
import type { Applied, Mode, ModeContext, ModeDefinition, ModeSettings, Planner } from '../mode.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { IptablesPlan } from './plan.js'
import type { RuleCounts } from './count.js'

export interface IptablesDeps extends Partial<OpenDeps> {
  readonly readSysctl?: (name: string) => Promise<string>
  readonly writeSysctl?: (name: string, value: string) => Promise<void>
}

/** `net/ipv4/…`, below /proc/sys. */
const readSysctl = async (name: string) => (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
const writeSysctl = (name: string, value: string) => writeFile(`/proc/sys/${name}`, value)

const openGeneration = () => {
  const channel = openChannel(protocols.netfilter)
  return () => readGeneration(channel)
}

/** What `render` assumes, because it asks no kernel. */
const offlineFacts: KernelFacts = { hasBpf: true, hasAccounting: false, randomFully: true }

export function iptablesMode(given: IptablesDeps = {}): ModeDefinition {
  const deps = { openAccounts: openPacketAccounts, openGeneration, ...given }
  return {
    name: 'iptables',
    summary: 'iptables rules as everybody knows them; works wherever iptables does',
    probe: async ({ log }) => [
      ...(await probeFamily('IPv4', log, given)),
      ...(await probeFamily('IPv6', log, given)),
    ],
    planner: (settings) => new RuleTexts(settings, offlineFacts),
    create: async (settings, context) =>
      new IptablesMode({
        ...{ settings, context, deps: given },
        opened: await openFamilies(settings, context.log, deps),
      }),
    differences: (state, settings) => readDifferences(state, settings, given),
    cleanup: (context) => cleanupAll(context.log, deps),
  }
}

export const mode: ModeDefinition = iptablesMode()

/** The planner with its two texts. */
class RuleTexts implements Planner<IptablesPlan> {
  readonly #planner: IptablesPlanner

  constructor(settings: ModeSettings, facts: KernelFacts) {
    this.#planner = new IptablesPlanner({
      masqueradeBit: settings.masqueradeBit,
      masqueradeAll: settings.masqueradeAll,
      localhostNodePorts: settings.localhostNodePorts,
      dropsInvalid: !settings.conntrackTcpBeLiberal,
      ...facts,
    })
  }

  plan(state: DesiredState): IptablesPlan {
    return this.#planner.plan(state)
  }

  render(plan: IptablesPlan): string {
    return renderPlan(plan)
  }

  renderChanges(plan: IptablesPlan, previous: IptablesPlan | undefined): string {
    return renderChanges(plan, previous)
  }
}

interface ModeParts {
  readonly opened: Opened
  readonly settings: ModeSettings
  readonly context: ModeContext
  readonly deps: Pick<IptablesDeps, 'readSysctl' | 'writeSysctl'>
}

class IptablesMode extends RuleTexts implements Mode<IptablesPlan> {
  readonly name = 'iptables'
  readonly #opened: Opened
  readonly #settings: ModeSettings
  readonly #context: ModeContext
  readonly #deps: ModeParts['deps']
  readonly #counters: PacketCounters | undefined
  #hasSetLocalnet = false

  constructor({ opened, settings, context, deps }: ModeParts) {
    super(settings, opened.facts)
    this.#opened = opened
    this.#settings = settings
    this.#context = context
    this.#deps = deps
    if (opened.accounts) this.#counters = new PacketCounters(opened.accounts, context)
  }

  async apply(plan: IptablesPlan, previous: IptablesPlan | undefined): Promise<Applied> {
    const rules = this.#opened.families.get(plan.family)
    if (!rules) return { full: false, bytes: 0, objects: 0, failed: [] }
    const { written, total, ...applied } = await rules.apply(plan, previous)
    // The guard rule is in force now, so 127.0.0.1 may become reachable by route.
    if (plan.usesLocalnet) await this.#setLocalnet()
    this.#measure(plan.family, written, total)
    return applied
  }

  async run(signal: AbortSignal): Promise<void> {
    const { log } = this.#context
    const { families, foreign } = this.#opened
    const watching = [...families].map(([family, rules]) => {
      const changed = (what: string) =>
        this.#context.resync(`${family} iptables rules were changed: ${what}`, { full: true })
      const { syncPeriodMs: periodMs } = this.#settings
      return watchRules({ rules, foreign, log, periodMs, changed }, signal)
    })
    await Promise.all([...watching, this.#counters?.run(signal)])
  }

  close(): Promise<void> {
    this.#counters?.close()
    return Promise.resolve()
  }

  /** IT34. */
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
