import { readFile, writeFile } from 'node:fs/promises'
import { bytecode, Iptables, isIptablesError, rule } from '../../kernel/iptables.js'
import { countRules, IptablesPlanner } from './plan.js'
import { cleanupAll } from './cleanup.js'
import { FamilyRules } from './apply.js'
import { kernelError } from './kernel-error.js'
import { messageOf } from '../../errors.js'
import { probeFamily } from './probe.js'
import { renderChanges, renderPlan } from './render.js'
import { watchRules } from './watch.js'
import type { Applied, Mode, ModeContext, ModeDefinition, ModeSettings, Planner } from '../mode.js'
import type { Backend, Run } from '../../kernel/iptables.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { IptablesPlan, PlanSettings } from './plan.js'

export interface IptablesDeps {
  readonly run?: Run
  readonly backend?: Backend
  readonly readSysctl?: (name: string) => Promise<string>
  readonly writeSysctl?: (name: string, value: string) => Promise<void>
}

/** `net/ipv4/…`, below /proc/sys. */
const readSysctl = async (name: string) => (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
const writeSysctl = (name: string, value: string) => writeFile(`/proc/sys/${name}`, value)

export function iptablesMode(deps: IptablesDeps = {}): ModeDefinition {
  return {
    name: 'iptables',
    summary: 'iptables rules as everybody knows them; works wherever iptables does',
    probe: async () => [...(await probeFamily('IPv4', deps)), ...(await probeFamily('IPv6', deps))],
    planner: (settings) => new RuleTexts(settings, { hasBpf: true, randomFully: true }),
    create: (settings, context) => createMode(settings, context, deps),
    cleanup: (context) => cleanupAll(context.log, deps.run),
  }
}

export const mode: ModeDefinition = iptablesMode()

type KernelFacts = Pick<PlanSettings, 'hasBpf' | 'randomFully'>

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

class IptablesMode extends RuleTexts implements Mode<IptablesPlan> {
  readonly name = 'iptables'
  readonly #families: ReadonlyMap<IpFamily, FamilyRules>
  readonly #settings: ModeSettings
  readonly #context: ModeContext
  readonly #deps: IptablesDeps
  #hasSetLocalnet = false

  constructor(
    families: ReadonlyMap<IpFamily, FamilyRules>,
    facts: KernelFacts,
    settings: ModeSettings,
    context: ModeContext,
    deps: IptablesDeps,
  ) {
    super(settings, facts)
    this.#families = families
    this.#settings = settings
    this.#context = context
    this.#deps = deps
  }

  async apply(plan: IptablesPlan, previous: IptablesPlan | undefined): Promise<Applied> {
    const rules = this.#families.get(plan.family)
    if (!rules) return { full: false, bytes: 0, objects: 0, failed: [] }
    const applied = await rules.apply(plan, previous)
    // The guard is in place by now, so 127.0.0.1 may become reachable by route.
    if (plan.usesLocalnet) await this.#setLocalnet()
    this.#measure(plan, applied)
    return applied
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all(
      [...this.#families].map(([family, rules]) =>
        watchRules(
          {
            rules,
            log: this.#context.log,
            periodMs: this.#settings.syncPeriodMs,
            changed: (what) => {
              this.#context.resync(`${family} iptables rules were changed: ${what}`, { full: true })
            },
          },
          signal,
        ),
      ),
    )
  }

  close(): Promise<void> {
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

  #measure(plan: IptablesPlan, applied: Applied): void {
    const labels = { ip_family: plan.family }
    const { meter } = this.#context
    if (!applied.full) {
      meter.gauge('sync_proxy_rules_iptables_last', { ...labels, table: 'all' }, applied.objects)
      return
    }
    for (const [table, count] of Object.entries(countRules(plan))) {
      meter.gauge('sync_proxy_rules_iptables_total', { ...labels, table }, count)
      meter.gauge('sync_proxy_rules_iptables_last', { ...labels, table }, count)
    }
  }
}

async function createMode(
  settings: ModeSettings,
  context: ModeContext,
  deps: IptablesDeps,
): Promise<Mode> {
  const families = new Map<IpFamily, FamilyRules>()
  const failures: unknown[] = []
  let facts: KernelFacts = { hasBpf: true, randomFully: true }
  for (const family of settings.families) {
    try {
      const { run, backend = 'auto' } = deps
      const iptables = await Iptables.open({ family, backend, ...(run ? { run } : {}) })
      await iptables.check()
      const probe = rule({ matches: [bytecode([[6, 0, 0, 0]])], jump: 'RETURN' })
      facts = {
        hasBpf: facts.hasBpf && (await iptables.supports('nat', probe)),
        randomFully: facts.randomFully && iptables.capabilities.randomFully,
      }
      const options = { iptables, log: context.log, retryMs: settings.syncPeriodMs * 0.9 }
      families.set(family, new FamilyRules(options))
      context.log.info({ family, ...iptables.capabilities }, 'using iptables')
    } catch (error) {
      failures.push(error)
      // IT49: the other family may still do.
      const hint = isIptablesError(error, 'missing') ? 'not installed' : messageOf(error)
      context.log.warn({ family, reason: hint }, 'no iptables for this IP family, leaving it out')
    }
  }
  if (families.size === 0) throw kernelError(failures[0], 'start iptables mode')
  return new IptablesMode(families, facts, settings, context, deps)
}
