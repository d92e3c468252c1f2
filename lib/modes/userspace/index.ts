import { existsSync } from 'node:fs'
import { messageOf } from '../../errors.js'
import { listeningSockets } from '../../kernel/sockets/listening.js'
import type { IpFamily } from '../../state/ip.js'
import type { Finding, ModeDefinition } from '../mode.js'
import { withoutBranches } from './portals/branches.js'
import { checkBindAddress, UserspacePlanner, type UserspacePlan } from './plan.js'
import { addressDifferences } from './portals/address-differences.js'
import { userspaceDifferences } from './differences.js'
import { readPortals } from './portals/portals.js'
import { fixedRules, renderPlan, renderPlanChanges } from './render.js'
import {
  openIptables,
  removeAddressesOf,
  removeRules,
  settledPortals,
  withLinks,
} from './portals/open-ways.js'
import { UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { UserspaceMode } from './userspace-mode.js'
import type { Planner } from '../mode.js'

export const definition: ModeDefinition = {
  name: 'userspace',
  summary: 'a listener in this process for every service port, behind iptables redirects',

  async probe() {
    const families: readonly IpFamily[] = existsSync('/proc/net/if_inet6')
      ? ['IPv4', 'IPv6']
      : ['IPv4']
    const findings = await Promise.all(families.map(probeIptables))
    return [...findings, await probeKoffi()]
  },

  planner(settings) {
    if (settings.userspace.portals !== 'addresses') {
      checkBindAddress(settings.userspace.bindAddress)
    }
    const planner = new UserspacePlanner(settings)
    const typed: Planner<UserspacePlan> = {
      plan: (state) => planner.plan(state),
      render: (plan) => renderPlan(plan, settings),
      renderChanges: (plan, previous) => renderPlanChanges(plan, previous, settings),
    }
    return typed
  },

  create: (settings, context) => UserspaceMode.create(settings, context),

  async settle(settings, family) {
    const portals = await settledPortals(settings.userspace.portals, family)
    return { ...settings, userspace: { ...settings.userspace, portals } }
  },

  async differences(state, settings) {
    const plan = new UserspacePlanner(settings).plan(state)
    const sockets = await listeningSockets()
    if (settings.userspace.portals === 'addresses') {
      return withLinks((links) => addressDifferences(plan, links, sockets))
    }
    const tables = withoutBranches(await readPortals(await openIptables(state.family)))
    const listening = new Set(sockets.map(({ protocol, port }) => `${protocol} ${port}`))
    const listing = { tables, listening }
    return userspaceDifferences(plan, fixedRules(settings.userspace.portRange), listing)
  },

  async cleanup(context) {
    const flows = new UdpFlowCleaner(context)
    for (const family of families) await removeRules(family, flows)
    try {
      await removeAddressesOf(families, context.log)
    } catch (error) {
      const fields = { reason: messageOf(error) }
      context.log.info(fields, 'not looked for: addresses of Services on this machine')
    }
  },
}

const families: readonly IpFamily[] = ['IPv4', 'IPv6']

/** None of it is required: without rules, addresses of this machine serve its own programs. */
async function probeIptables(family: IpFamily): Promise<Finding> {
  const what = family === 'IPv4' ? 'iptables' : 'ip6tables'
  try {
    const { backend, version } = (await openIptables(family)).capabilities
    return { what, ok: true, required: false, seen: `${version.join('.')} ${backend}`, fix: '' }
  } catch (error) {
    const fix =
      'install iptables, load xt_nat and xt_conntrack, and run with the right to change rules ' +
      '(NET_ADMIN); without it only programs on this machine are served (--userspace-portals=addresses)'
    return { what, ok: false, required: false, seen: messageOf(error), fix }
  }
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
