import { messageOf } from '../../errors.js'
import { connectionState, rule, type Iptables } from '../../kernel/iptables.js'
import { listeningPorts } from '../../kernel/sockets/listening.js'
import type { IpFamily } from '../../state/ip.js'
import type { Finding, ModeDefinition } from '../mode.js'
import { UserspacePlanner, type UserspacePlan } from './plan.js'
import { userspaceDifferences } from './differences.js'
import { Portals, readPortals } from './portals.js'
import { fixedRules, renderPlan, renderPlanChanges } from './render.js'
import { checkBindAddress, openIptables, UserspaceMode } from './userspace-mode.js'
import type { Planner } from '../mode.js'

export const definition: ModeDefinition = {
  name: 'userspace',
  summary: 'a listener in this process for every service port, behind iptables redirects',

  async probe() {
    return [...(await probeIptables('IPv4')), await probeKoffi()]
  },

  planner(settings) {
    checkBindAddress(settings.userspace.bindAddress)
    const planner = new UserspacePlanner(settings)
    const typed: Planner<UserspacePlan> = {
      plan: (state) => planner.plan(state),
      render: (plan) => renderPlan(plan, settings),
      renderChanges: (plan, previous) => renderPlanChanges(plan, previous, settings),
    }
    return typed
  },

  create: (settings, context) => UserspaceMode.create(settings, context),

  async differences(state, settings) {
    const [iptables] = await openIptables([state.family])
    if (!iptables) return []
    const plan = new UserspacePlanner(settings).plan(state)
    const tables = await readPortals(iptables)
    const listing = { tables, listening: await listeningPorts() }
    return userspaceDifferences(plan, fixedRules(settings.userspace.portRange), listing)
  },

  async cleanup() {
    for (const family of ['IPv4', 'IPv6'] as const) {
      const iptables = await openIptables([family]).catch(() => [])
      for (const programs of iptables) await new Portals(programs, []).remove()
    }
  },
}

async function probeIptables(family: IpFamily): Promise<readonly Finding[]> {
  const what = 'iptables'
  let iptables: Iptables | undefined
  try {
    ;[iptables] = await openIptables([family])
    await iptables?.check()
  } catch (error) {
    const fix = 'install iptables, and run with the right to change it (NET_ADMIN)'
    return [{ what, ok: false, required: true, seen: messageOf(error), fix }]
  }
  if (!iptables) return []
  const { backend, version } = iptables.capabilities
  const found = { what, ok: true, required: true, seen: `${version.join('.')} ${backend}`, fix: '' }
  const probes = [
    ['nat target REDIRECT', 'nat', rule({ protocol: 'tcp', jump: 'REDIRECT' })],
    ['match conntrack', 'filter', rule({ matches: [connectionState('DNAT')] })],
  ] as const
  const findings: Finding[] = [found]
  for (const [what, table, wanted] of probes) {
    const ok = await iptables.supports(table, wanted).catch(() => false)
    const seen = ok ? 'works' : 'refused by iptables-restore --test'
    findings.push({
      what,
      ok,
      required: true,
      seen,
      fix: ok ? '' : 'load the kernel module xt_nat',
    })
  }
  return findings
}

async function probeKoffi(): Promise<Finding> {
  const what = 'koffi, for the data path splice'
  try {
    await import('koffi')
    return { what, ok: true, required: false, seen: 'loads', fix: '' }
  } catch (error) {
    const fix = 'the data path net is used instead'
    return { what, ok: false, required: false, seen: messageOf(error), fix }
  }
}
