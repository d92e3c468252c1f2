import { KernelError, messageOf } from '../../errors.js'
import type { Config } from '../../config/config.js'
import type { LinkAddresses } from '../../kernel/link-addresses.js'
import { Iptables } from '../../kernel/iptables.js'
import { listeningSockets } from '../../kernel/sockets/listening.js'
import { ipFamilies, type IpFamily } from '../../state/ip.js'
import { chainNames, hasChains, mayHaveRules } from '../chain-names.js'
import type { Log, ModeDefinition } from '../mode.js'
import { userspaceDifferences } from './differences.js'
import { portalsOf, userspacePlanner } from './plan.js'
import { userspaceReader, fixedRules } from './render.js'
import { addressDifferences } from './portals/address-differences.js'
import { readPortals } from './portals/iptables-portals.js'
import {
  linux,
  openIptables,
  removeAddressesOf,
  removeRules,
  settledPortals,
  sought,
  withLink,
  type PortalMeans,
} from './portals/open-portals.js'
import { isOurs } from './portals/removal.js'
import { removeSourceRouting } from './portals/source-keeping.js'
import { SourceRouting } from './portals/source-routing.js'
import { withoutSubChains } from './portals/sub-chains.js'
import { UdpFlowCleaner } from './portals/udp-flow-cleaner.js'
import { probeUserspace } from './probe.js'
import { canLog } from '../refusal-log.js'
import { windowsSettings, userspaceSettings } from './settings.js'
import { removeTakeoverFolder } from './takeover/giver.js'
import { UserspaceMode } from './userspace-mode.js'

export const definition: ModeDefinition = {
  summary: 'a listener in this process for every service port, behind iptables redirects',

  probe: probeUserspace,

  syncPeriods: ({ iptables }) => ({ minMs: iptables.minSyncPeriod, syncMs: iptables.syncPeriod }),

  planner: (config) => userspaceReader(userspaceSettings(config)),

  create: (config, families, context) =>
    UserspaceMode.create(userspaceSettings(config), families, context),

  async settle(config, family) {
    const portals = await settledPortals(portalsOf(userspaceSettings(config)), family)
    return { ...config, userspace: { ...config.userspace, portals } }
  },

  async differences(state, config) {
    const settings = userspaceSettings(config)
    const plan = userspacePlanner(settings)(state)
    const sockets = await listeningSockets()
    if (settings.portals === 'addresses') {
      return withLink(linux, silent, (link) => addressDifferences(plan, link, sockets))
    }
    const iptables = await openIptables(state.family)
    const tables = withoutSubChains(await readPortals(iptables))
    const listening = new Set(sockets.map(({ protocol, port }) => `${protocol} ${port}`))
    const listing = { tables, listening }
    const logsRefused = settings.logsRefused && (await canLog(iptables))
    return userspaceDifferences(plan, fixedRules({ ...settings, logsRefused }), listing)
  },

  async cleanup(context, config, { sparesUsed = false } = {}) {
    const flows = new UdpFlowCleaner(context)
    const unseen: IpFamily[] = []
    for (const family of ipFamilies) {
      // The node may use another backend now. A node without any iptables is seen by nft.
      for (const backend of ['nft', 'legacy'] as const) {
        if (backend === 'legacy' && !(await mayHaveRules(family, backend))) continue
        const opening = Iptables.open({ family, backend, chainNames, sought })
        await removeRules(family, flows, opening)
        const routing = new SourceRouting(family, () => opening)
        await removeSourceRouting(family, { routing, log: context.log }, { sparesUsed })
        if (backend === 'nft') await opening.catch(() => unseen.push(family))
      }
    }
    try {
      await removeAddressesOf(ipFamilies, context.log)
    } catch (error) {
      const fields = { reason: messageOf(error) }
      context.log.info(fields, 'addresses of Services on this machine cannot be listed')
    }
    await removeTakeoverFolder(config?.userspace.takeoverFolder ?? '')
    for (const family of unseen) {
      // A chain that stays where iptables is there has a jump of others, and no rules.
      if (await hasChains(family, isOurs)) throw new KernelError('failed', `${family} ${rulesStay}`)
    }
  },
}

const rulesStay = 'rules are still there; install iptables, and try again'

/** Drops all lines, for commands that only look at the machine. */
const silent: Log = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
}

/**
 * The parts of this mode for another operating system. There are no rules: listeners are at
 * addresses that the opened link adds to this machine.
 */
export function onAddresses(openLinkFor: (config: Config | undefined) => PortalMeans['openLink']) {
  const meansOf = (config?: Config): PortalMeans => ({
    hasRules: false,
    openLink: openLinkFor(config),
  })
  return {
    syncPeriods: (config) => definition.syncPeriods(config),
    planner: (config) => userspaceReader(windowsSettings(config)),
    create: (config, families, context) =>
      UserspaceMode.create(windowsSettings(config), families, context, {
        means: meansOf(config),
      }),
    differences: (state, config) => {
      const plan = userspacePlanner(windowsSettings(config))(state)
      const compare = (link: LinkAddresses) => addressDifferences(plan, link, undefined)
      return withLink(meansOf(config), silent, compare)
    },
    cleanup: ({ log }) => removeAddressesOf(ipFamilies, log, meansOf()),
  } satisfies Partial<ModeDefinition>
}
