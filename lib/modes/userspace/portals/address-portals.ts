import { KernelError, messageOf } from '../../../errors.js'
import type { AddressFailure } from '../../../kernel/links.js'
import { isLoopback, parseIp, type IpFamily } from '../../../state/ip.js'
import type { Log, ServiceFailure } from '../../mode.js'
import { addressMark, deviceName } from '../names.js'
import type { ServicePlan } from '../plan.js'
import type { Portals, WriteOutcome } from './portals.js'

/** The part of kernel/links.ts that is used here. */
export interface AddressLinks {
  find(name: string): number | undefined
  ensureDummy(name: string): number
  remove(name: string): boolean
  addresses(
    family: IpFamily,
    device: { readonly on: number; readonly metric?: number } | { readonly except: number },
  ): Promise<readonly string[]>
  addAddresses(
    family: IpFamily,
    index: number,
    ips: readonly string[],
    metric?: number,
  ): Promise<readonly AddressFailure[]>
  deleteAddresses(
    family: IpFamily,
    index: number,
    ips: readonly string[],
  ): Promise<readonly AddressFailure[]>
}

/**
 * The virtual IPs as addresses of this machine, for nodes without netfilter. Its programs reach
 * the listeners on these addresses. The addresses are added to our own dummy device, or to `lo`
 * where the kernel has none. Addresses of 127.0.0.0/8 work without that, so an ordinary user can
 * run this mode with them.
 */
export class AddressPortals implements Portals {
  readonly listensDirectly = true
  readonly #family: IpFamily
  readonly #openLinks: () => Promise<AddressLinks>
  readonly #log: Log
  #links: Promise<AddressLinks> | undefined
  #device: number | undefined
  /** The addresses of each service, by its key. */
  readonly #wanted = new Map<string, readonly string[]>()
  /** The addresses that are on the device now. */
  readonly #held = new Set<string>()

  constructor(family: IpFamily, deps: { openLinks: () => Promise<AddressLinks>; log: Log }) {
    this.#family = family
    this.#openLinks = deps.openLinks
    this.#log = deps.log
  }

  async prepare(
    services: readonly ServicePlan[],
    { gone, full }: { readonly gone: readonly string[]; readonly full: boolean },
  ): Promise<readonly ServiceFailure[]> {
    for (const key of gone) this.#wanted.delete(key)
    for (const { key, addresses } of services) this.#wanted.set(key, addresses)
    const wanted = new Set(services.flatMap(({ addresses }) => addresses.filter(needsDevice)))
    let missing = [...wanted].filter((ip) => !this.#held.has(ip))
    if (full && wanted.size > 0) missing = [...wanted]
    if (missing.length === 0) return []
    const failed = await this.#add(missing)
    return services.flatMap(({ key, addresses }) => {
      const reason = addresses.map((ip) => failed.get(ip)).find((text) => text !== undefined)
      return reason === undefined ? [] : [{ key, reason, event: 'AddressFailed' }]
    })
  }

  async replaceAll(): Promise<WriteOutcome> {
    const links = await this.#openIfPossible()
    if (links) {
      const { failures, kept } = await removeAddresses(links, this.#family, this.#device)
      this.#warn(failures)
      for (const ip of kept) this.#held.add(ip)
    }
    return this.change()
  }

  async change(): Promise<WriteOutcome> {
    const wanted = new Set([...this.#wanted.values()].flat())
    const unused = [...this.#held].filter((ip) => !wanted.has(ip))
    await this.#delete(unused)
    return { bytes: 0, objects: unused.length, changed: [] }
  }

  async isIntact(): Promise<boolean> {
    if (this.#held.size === 0) return true
    const held = [...this.#held]
    const links = await this.#open()
    const device = await this.#ensureDevice()
    const present = new Set(await links.addresses(this.#family, { on: device }))
    // What a sync has removed meanwhile is not missing.
    return held.every((ip) => present.has(ip) || !this.#held.has(ip))
  }

  async remove(): Promise<ReadonlySet<number>> {
    this.#wanted.clear()
    if (this.#held.size > 0) {
      const { failures } = await removeAddresses(await this.#open(), this.#family)
      this.#warn(failures)
    }
    this.#held.clear()
    this.#device = undefined
    return new Set()
  }

  /** Nothing was left standing. */
  drained(): Promise<void> {
    return Promise.resolve()
  }

  /** The addresses that could not be added, and why. */
  async #add(ips: readonly string[]): Promise<ReadonlyMap<string, string>> {
    const failed = new Map<string, string>()
    try {
      const links = await this.#open()
      const device = await this.#ensureDevice()
      const ours = new Set(await oursOn(links, this.#family, device))
      const onDevice = await links.addresses(this.#family, { on: device })
      const elsewhere = await links.addresses(this.#family, { except: device })
      const others = new Set([...elsewhere, ...onDevice].filter((ip) => !ours.has(ip)))
      // An address of the node, such as an external IP, works already, and stays when we go.
      const own = ips.filter((ip) => !others.has(ip))
      const refused = await links.addAddresses(this.#family, device, own, addressMark)
      for (const { ip, error } of refused) failed.set(ip, explain(ip, error))
      for (const ip of own) if (!failed.has(ip)) this.#held.add(ip)
    } catch (error) {
      for (const ip of ips) failed.set(ip, explain(ip, error))
    }
    return failed
  }

  async #delete(ips: readonly string[]): Promise<void> {
    if (ips.length === 0 || this.#device === undefined) return
    const links = await this.#open()
    const failures = await links.deleteAddresses(this.#family, this.#device, ips)
    for (const ip of ips) this.#held.delete(ip)
    this.#warn(failures)
  }

  #warn(failures: readonly AddressFailure[]): void {
    for (const { ip, error } of failures) {
      this.#log.warn({ ip, error: error.message }, 'remove the address of a Service')
    }
  }

  /** Undefined where netlink cannot be used: then no process has added addresses. */
  async #openIfPossible(): Promise<AddressLinks | undefined> {
    try {
      return await this.#open()
    } catch {
      return undefined
    }
  }

  /** What cannot be opened now may be later. */
  #open(): Promise<AddressLinks> {
    const opening = (this.#links ??= this.#openLinks())
    opening.catch(() => (this.#links = undefined))
    return opening
  }

  async #ensureDevice(): Promise<number> {
    if (this.#device !== undefined) return this.#device
    const links = await this.#open()
    try {
      this.#device = links.ensureDummy(deviceName)
    } catch (error) {
      const loopback = links.find('lo')
      if (loopback === undefined || isDenied(error)) throw error
      this.#log.info({ reason: messageOf(error) }, 'addresses of Services go on lo')
      this.#device = loopback
    }
    return this.#device
  }
}

/**
 * Removes the addresses that processes of this mode have added to this machine. Those on
 * `keptDevice` stay and are returned. Our own device goes with its last address.
 */
export async function removeAddresses(
  links: AddressLinks,
  family: IpFamily,
  keptDevice?: number,
): Promise<{ readonly failures: readonly AddressFailure[]; readonly kept: readonly string[] }> {
  const failures: AddressFailure[] = []
  const kept: string[] = []
  const own = links.find(deviceName)
  for (const index of devicesOf(links)) {
    const ips = await oursOn(links, family, index)
    if (index === keptDevice) kept.push(...ips)
    else failures.push(...(await links.deleteAddresses(family, index, ips)))
  }
  if (own !== undefined && own !== keptDevice) {
    const [on4, on6] = [links.addresses('IPv4', { on: own }), links.addresses('IPv6', { on: own })]
    if ([...(await on4), ...(await on6)].every(isAutomatic)) links.remove(deviceName)
  }
  return { failures, kept }
}

/** The addresses that processes of this mode have added to this machine. */
export async function ourAddresses(
  links: Pick<AddressLinks, 'addresses' | 'find'>,
  family: IpFamily,
): Promise<readonly string[]> {
  const ips: string[] = []
  for (const index of devicesOf(links)) ips.push(...(await oursOn(links, family, index)))
  return ips
}

/** The devices that may have addresses of ours: our own device, and `lo`. */
function devicesOf(links: Pick<AddressLinks, 'find'>): readonly number[] {
  return [links.find(deviceName), links.find('lo')].filter((index) => index !== undefined)
}

/** Every address on our own device, and those with our mark on `lo`. */
async function oursOn(
  links: Pick<AddressLinks, 'addresses' | 'find'>,
  family: IpFamily,
  index: number,
): Promise<readonly string[]> {
  if (index === links.find('lo')) return links.addresses(family, { on: index, metric: addressMark })
  return (await links.addresses(family, { on: index })).filter((ip) => !isAutomatic(ip))
}

/** False for loopback addresses: `lo` has all of 127.0.0.0/8, and of IPv6 ::1. */
export function needsDevice(ip: string): boolean {
  const parsed = parseIp(ip)
  return parsed !== undefined && !isLoopback(parsed)
}

/** The kernel gives IPv6 devices an address by itself. */
function isAutomatic(ip: string): boolean {
  return ip.startsWith('fe80:')
}

function isDenied(error: unknown): boolean {
  return error instanceof KernelError && error.kind === 'denied'
}

function explain(ip: string, error: unknown): string {
  const advice = isDenied(error)
    ? '; that takes the right NET_ADMIN, without which only Services on 127.0.0.0/8 can be served'
    : ''
  return `put ${ip} on this machine: ${messageOf(error)}${advice}`
}
