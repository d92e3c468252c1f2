import { KernelError, messageOf, type KernelErrorKind } from '../../../errors.js'
import {
  connectionState,
  Iptables,
  rule,
  type OpenOptions,
  type Run,
} from '../../../kernel/iptables.js'
import type { IpFamily } from '../../../state/ip.js'
import { kernelError } from '../../../kernel/command.js'
import { ForeignCommits, openGeneration } from '../../foreign-commits.js'
import type { Log } from '../../mode.js'
import type { UserspaceSettings } from '../settings.js'
import type { LinkAddresses } from '../../../kernel/link-addresses.js'
import { addressMark, deviceName, drainChain, natChains } from '../names.js'
import { AddressPortals, removeAddresses } from './address-portals.js'
import { IptablesPortals } from './iptables-portals.js'
import { ourChains } from './removal.js'
import { chainNames } from '../../chain-names.js'
import { warnOfOtherBackend } from '../../other-backend.js'
import { canLog, withoutLog } from '../../refusal-log.js'
import { waitForLock } from '../../xtables-lock.js'
import { fixedRules, jumps } from '../render.js'
import { sourceJumps } from './source-routing.js'
import type { UdpFlowCleaner } from './udp-flow-cleaner.js'
import type { Portals } from './portals.js'

export type PortalsByFamily = ReadonlyMap<IpFamily, Portals>

/** The means by which this machine can lead clients to listeners. */
export interface PortalMeans {
  /** Whether there are iptables, conntrack and routes by mark: Linux. */
  readonly hasRules: boolean
  /** Opens the object that adds addresses of Services to this machine. */
  readonly openLink: (log: Log) => Promise<LinkAddresses>
}

/** Netfilter, and addresses over rtnetlink. */
export const linux: PortalMeans = {
  hasRules: true,
  openLink: async (log) => {
    const { DeviceAddresses, Links } = await loadLinks()
    const onLoopback = (reason: string) => log.info({ reason }, 'addresses of Services go on lo')
    const options = { device: deviceName, mark: addressMark, onLoopback }
    return new DeviceAddresses(new Links(), options)
  },
}

interface OpenParts {
  readonly log: Log
  readonly run?: Run | undefined
  readonly means?: PortalMeans
  /** Shared by all that write to the same kernel. */
  readonly foreign?: ForeignCommits
}

/** Rules where iptables works, else addresses of this machine, unless the settings choose. */
export async function openPortals(
  settings: UserspaceSettings,
  families: readonly IpFamily[],
  { log, run, means = linux, foreign = new ForeignCommits() }: OpenParts,
): Promise<PortalsByFamily> {
  const parts = { log, run, means, foreign }
  const open = async (family: IpFamily) =>
    [family, await openFamily(family, settings, parts)] as const
  return new Map(await Promise.all(families.map(open)))
}

async function openFamily(
  family: IpFamily,
  settings: UserspaceSettings,
  { log, run, foreign, means }: Required<OpenParts>,
): Promise<Portals> {
  if (means.hasRules && settings.portals !== 'addresses') {
    try {
      const { iptables, logsRefused } = await openPatiently(family, settings, { log, run })
      if (logsRefused !== settings.logsRefused) log.warn({ family }, withoutLog)
      const { backend } = iptables.capabilities
      await warnOfOtherBackend({ family, backend, chain: natChains.portalsContainer }, { log, run })
      return new IptablesPortals(iptables, {
        fixed: fixedRules({ ...settings, logsRefused }),
        log,
        ...(backend === 'nft' ? { foreign } : {}),
      })
    } catch (error) {
      // With listeners on addresses, endpoints never see the address of a client.
      if (isMissing(error) && settings.sourceAddress === 'keep') throw notKeepable(error)
      if (!isMissing(error) || settings.portals === 'iptables') throw error
      log.warn(
        { family, reason: messageOf(error) },
        'iptables cannot be used: Services are served at addresses of this machine, to its programs ' +
          'and to pods that route through it; other machines cannot reach them, and endpoints see ' +
          'this node as their client',
      )
    }
  }
  // Loads them now, while there are descriptors: Node.js never repeats an import that has failed.
  if (means.hasRules) await loadLinks().catch(() => undefined)
  return new AddressPortals(family, { openLink: () => means.openLink(log), log })
}

/** Removes all rules of this mode, also those of earlier runs. Without iptables there are none. */
export async function removeRules(
  family: IpFamily,
  flows: UdpFlowCleaner,
  opening: Promise<Iptables>,
): Promise<void> {
  try {
    const iptables = await opening
    if (!(await iptables.hasAny([...ourChains, ['filter', drainChain]]))) return
    const portals = new IptablesPortals(iptables, { fixed: [] })
    await flows.forget(family, await portals.remove())
    await portals.drained()
  } catch (error) {
    if (!isAbsent(kernelError(error))) throw error
  }
}

/** Removes all addresses that this mode has added to this machine, also in earlier runs. */
export async function removeAddressesOf(
  families: readonly IpFamily[],
  log: Log,
  means = linux,
): Promise<void> {
  await withLink(means, log, async (link) => {
    for (const family of families) {
      await removeAddresses(link, family, log)
    }
  })
}

interface OtherParts {
  readonly means: PortalMeans
  readonly flows: UdpFlowCleaner
  readonly run: Run | undefined
  readonly log: Log
}

/** Removes rules or addresses of an earlier process that used the other kind of portals. */
export async function removeOtherPortals(
  family: IpFamily,
  { listensDirectly }: Portals,
  { means, flows, run, log }: OtherParts,
): Promise<void> {
  if (!means.hasRules) return
  try {
    if (listensDirectly) await removeRules(family, flows, openIptables(family, run))
    else await removeAddressesOf([family], log)
  } catch (error) {
    const fields = { family, reason: messageOf(error) }
    log.info(fields, 'rules or addresses of an earlier run cannot be removed')
  }
}

export async function withLink<T>(
  means: PortalMeans,
  log: Log,
  use: (link: LinkAddresses) => Promise<T>,
): Promise<T> {
  const link = await means.openLink(log)
  try {
    return await use(link)
  } finally {
    link.close()
  }
}

/** Imported late: koffi does not load on every node, and loopback addresses do not need it. */
async function loadLinks() {
  return {
    ...(await import('../../../kernel/links.js')),
    ...(await import('../../../kernel/device-addresses.js')),
  }
}

export async function openForeignCommits({ hasRules }: PortalMeans): Promise<ForeignCommits> {
  return new ForeignCommits(hasRules ? await openGeneration() : undefined)
}

/** All rules of this mode in chains of others. */
export const sought = [...jumps, ...sourceJumps]

/** Rules with the extensions that this mode needs. Few nodes need REDIRECT, too. */
const needed = [
  ['nat', rule({ protocol: 'tcp', jump: 'DNAT', jumpArgs: ['--to-destination', ':1'] })],
  ['filter', rule({ matches: [connectionState('DNAT')] })],
] as const

/** Throws KernelError where iptables is missing, may not be used, or lacks an extension we need. */
export async function openIptables(
  family: IpFamily,
  run?: Run,
  onLocked: NonNullable<OpenOptions['onLocked']> = () => false,
): Promise<Iptables> {
  try {
    const options = { family, onLocked, sought }
    const iptables = await Iptables.open({ ...options, ...(run ? { run } : { chainNames }) })
    // The programs exist even where this process has no right to use them.
    await iptables.ready()
    await iptables.require(needed)
    return iptables
  } catch (error) {
    throw kernelError(error, `try ${family} iptables`)
  }
}

/** Waits for a held xtables lock as iptables mode does. Later calls fail, and are tried again. */
async function openPatiently(
  family: IpFamily,
  settings: UserspaceSettings,
  { log, run }: Pick<OpenParts, 'log' | 'run'>,
) {
  const goesOn = waitForLock(log, () => settings.syncPeriodMs * 2)
  let isOpen = false
  const iptables = await openIptables(family, run, (locked) => !isOpen && goesOn(locked))
  const logsRefused = settings.logsRefused && (await canLog(iptables))
  isOpen = true
  return { iptables, logsRefused }
}

/** What `auto` means on this machine; `iptables` where this process may not look at rules. */
export async function settledPortals(
  portals: UserspaceSettings['portals'],
  family: IpFamily,
): Promise<UserspaceSettings['portals']> {
  if (portals !== 'auto') return portals
  try {
    await openIptables(family)
    return 'iptables'
  } catch (error) {
    return isAbsent(error) ? 'addresses' : 'iptables'
  }
}

/** The error of a node that must keep the addresses of clients, and cannot. */
export function notKeepable(cause: unknown): KernelError {
  const kind = cause instanceof KernelError ? cause.kind : 'failed'
  const text =
    `--userspace-source-address=keep: ${messageOf(cause)}; keep needs iptables and ` +
    `CAP_NET_ADMIN, and the proxy does not start without: choose auto or hide if it should`
  return new KernelError(kind, text, { cause })
}

/** Whether iptables will never work here. A lock that is held, or a time-out, is soon over. */
export function isMissing(error: unknown): error is KernelError {
  return error instanceof KernelError && missing.has(error.kind)
}

/** Whether nobody can have rules in it. A process that lacks rights cannot know. */
const isAbsent = (error: unknown) => isMissing(error) && error.kind !== 'denied'

const missing: ReadonlySet<KernelErrorKind> = new Set([
  'not-found',
  'denied',
  'unsupported',
  'invalid',
])
