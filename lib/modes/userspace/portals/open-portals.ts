import { KernelError, messageOf, type KernelErrorKind } from '../../../errors.js'
import { Batch, connectionState, Iptables, rule, type Run } from '../../../kernel/iptables.js'
import type { IpFamily } from '../../../state/ip.js'
import { kernelError } from '../../iptables-error.js'
import type { Log, ModeSettings } from '../../mode.js'
import type { Links } from '../../../kernel/links.js'
import { AddressPortals, removeAddresses } from './address-portals.js'
import { IptablesPortals } from './iptables-portals.js'
import { fixedRules } from '../render.js'
import type { UdpFlowCleaner } from './udp-flow-cleaner.js'
import type { Portals } from './portals.js'

export type PortalsByFamily = ReadonlyMap<IpFamily, Portals>

/** Rules where iptables works; addresses of this machine where they were asked for or must do. */
export async function openPortals(
  settings: ModeSettings,
  log: Log,
  run?: Run,
): Promise<PortalsByFamily> {
  const portals = await Promise.all(
    settings.families.map(async (family) => {
      const opened = await openFamily(family, { settings: settings.userspace, log, run })
      return [family, opened] as const
    }),
  )
  return new Map(portals)
}

async function openFamily(
  family: IpFamily,
  { settings, log, run }: { settings: ModeSettings['userspace']; log: Log; run: Run | undefined },
): Promise<Portals> {
  if (settings.portals !== 'addresses') {
    try {
      return new IptablesPortals(await openIptables(family, run), {
        fixed: fixedRules(settings.portRange),
        guardsEachPort: settings.portRange === undefined,
      })
    } catch (error) {
      if (settings.portals === 'iptables' || !isMissing(error)) throw error
      log.warn(
        { family, reason: messageOf(error) },
        'iptables cannot be used: Services are served at addresses of this machine, to its programs ' +
          'and to pods whose packets pass it; other machines do not find them there',
      )
    }
  }
  return new AddressPortals(family, { openLinks, log })
}

/** Removes rules of this mode, whoever has left them; where iptables is missing there are none. */
export async function removeRules(family: IpFamily, flows: UdpFlowCleaner, run?: Run) {
  try {
    const iptables = await openIptables(family, run)
    const ports = await new IptablesPortals(iptables, { fixed: [], guardsEachPort: true }).remove()
    await flows.forget(family, ports)
  } catch (error) {
    if (!isMissing(error)) throw error
  }
}

/** Removes addresses that this mode has put on this machine, whoever has left them. */
export async function removeAddressesOf(families: readonly IpFamily[], log: Log): Promise<void> {
  await withLinks(async (links) => {
    for (const family of families) {
      for (const { ip, error } of (await removeAddresses(links, family)).failures) {
        log.warn({ ip, error: error.message }, 'remove the address of a Service')
      }
    }
  })
}

export async function withLinks<T>(use: (links: Links) => Promise<T>): Promise<T> {
  const links = await openLinks()
  try {
    return await use(links)
  } finally {
    links.close()
  }
}

/** It speaks netlink through koffi, which not every node can load, and loopback addresses do without. */
async function openLinks(): Promise<Links> {
  return new (await import('../../../kernel/links.js')).Links()
}

/** What this mode's rules are made of beyond the simplest. */
const needed = [
  ['nat', rule({ protocol: 'tcp', jump: 'REDIRECT' })],
  ['filter', rule({ matches: [connectionState('DNAT')] })],
] as const

/** Throws KernelError where iptables is missing, refuses to be looked at, or lacks what we need. */
export async function openIptables(family: IpFamily, run?: Run): Promise<Iptables> {
  try {
    const iptables = await Iptables.open({ family, ...(run ? { run } : {}) })
    // Without the right to use it the programs are there all the same.
    await iptables.check()
    const batch = new Batch()
    for (const [table, wanted] of needed) {
      batch.chain(table, probeChain).append(table, probeChain, wanted)
    }
    await iptables.restore(batch, { test: true })
    return iptables
  } catch (error) {
    throw kernelError(error, `try ${family} iptables`)
  }
}

/** What `auto` comes to on this machine. Who may not look at rules cannot tell, and gets them explained. */
export async function settledPortals(
  portals: ModeSettings['userspace']['portals'],
  family: IpFamily,
): Promise<ModeSettings['userspace']['portals']> {
  if (portals !== 'auto') return portals
  try {
    await openIptables(family)
    return 'iptables'
  } catch (error) {
    const isDenied = error instanceof KernelError && error.kind === 'denied'
    return isMissing(error) && !isDenied ? 'addresses' : 'iptables'
  }
}

/** A lock that somebody holds, or a time-out, is no reason to serve less for good. */
export function isMissing(error: unknown): boolean {
  return error instanceof KernelError && missing.has(error.kind)
}

const missing: ReadonlySet<KernelErrorKind> = new Set([
  'not-found',
  'denied',
  'unsupported',
  'invalid',
])
/** Only ever tested, never made. */
const probeChain = 'KUBE-PORTALS-PROBE'
