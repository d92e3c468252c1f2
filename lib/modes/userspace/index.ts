import { messageOf } from '../../errors.js'
import { listeningSockets } from '../../kernel/sockets/listening.js'
import { ipFamilies } from '../../state/ip.js'
import type { ModeDefinition } from '../mode.js'
import { userspaceDifferences } from './differences.js'
import { userspacePlanner } from './plan.js'
import { userspaceReader } from './planner.js'
import { addressDifferences } from './portals/address-differences.js'
import { readPortals } from './portals/iptables-portals.js'
import {
  openIptables,
  removeAddressesOf,
  removeRules,
  removeSourceRouting,
  settledPortals,
  withLinks,
} from './portals/open-portals.js'
import { withoutSubChains } from './portals/sub-chains.js'
import { UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { probeUserspace } from './probe.js'
import { fixedRules } from './render.js'
import { userspaceSettings } from './settings.js'
import { UserspaceMode } from './userspace-mode.js'

export const definition: ModeDefinition = {
  summary: 'a listener in this process for every service port, behind iptables redirects',

  probe: probeUserspace,

  syncPeriods: ({ iptables }) => ({ minMs: iptables.minSyncPeriod, syncMs: iptables.syncPeriod }),

  planner: userspaceReader,

  create: (config, families, context) =>
    UserspaceMode.create(userspaceSettings(config), families, context),

  async settle(config, family) {
    const portals = await settledPortals(config.userspace.portals, family)
    return { ...config, userspace: { ...config.userspace, portals } }
  },

  async differences(state, config) {
    const settings = userspaceSettings(config)
    const plan = userspacePlanner(settings)(state)
    const sockets = await listeningSockets()
    if (settings.portals === 'addresses') {
      return withLinks((links) => addressDifferences(plan, links, sockets))
    }
    const tables = withoutSubChains(await readPortals(await openIptables(state.family)))
    const listening = new Set(sockets.map(({ protocol, port }) => `${protocol} ${port}`))
    const listing = { tables, listening }
    return userspaceDifferences(plan, fixedRules(settings.portRange), listing)
  },

  async cleanup(context) {
    const flows = new UdpFlowCleaner(context)
    for (const family of ipFamilies) {
      await removeRules(family, flows)
      await removeSourceRouting(family, context.log)
    }
    try {
      await removeAddressesOf(ipFamilies, context.log)
    } catch (error) {
      const fields = { reason: messageOf(error) }
      context.log.info(fields, 'addresses of Services on this machine cannot be looked for')
    }
  },
}
