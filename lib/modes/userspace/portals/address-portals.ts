import { KernelError, messageOf } from '../../../errors.js'
import type { AddressFailure, LinkAddresses } from '../../../kernel/link-addresses.js'
import { isNotLoopback, type IpFamily } from '../../../state/ip.js'
import type { Log, ServiceFailure } from '../../mode.js'
import type { ServicePlan } from '../plan.js'
import type { Leave, Portals, WriteOutcome } from './portals.js'

/** Opens the object that adds addresses to this machine. */
type OpenLink = () => Promise<LinkAddresses>

/**
 * Adds the virtual IPs as addresses to this machine, for nodes without netfilter. Programs of this
 * machine reach the listeners on these addresses. Addresses of 127.0.0.0/8 need not be added, so an
 * ordinary user can run this mode with them.
 */
export class AddressPortals implements Portals {
  readonly listensDirectly = true
  readonly iptables = undefined
  readonly #family: IpFamily
  readonly #openLink: OpenLink
  readonly #log: Log
  #link: Promise<LinkAddresses> | undefined
  /** The addresses of each service, by its key. */
  readonly #wanted = new Map<string, readonly string[]>()
  /** The addresses that this mode has on the link now. */
  readonly #held = new Set<string>()

  constructor(family: IpFamily, deps: { openLink: OpenLink; log: Log }) {
    this.#family = family
    this.#openLink = deps.openLink
    this.#log = deps.log
  }

  async prepare(
    services: readonly ServicePlan[],
    { gone, full }: { readonly gone: readonly string[]; readonly full: boolean },
  ): Promise<readonly ServiceFailure[]> {
    for (const key of gone) this.#wanted.delete(key)
    for (const { key, addresses } of services) this.#wanted.set(key, addresses)
    const wanted = new Set(services.flatMap(({ addresses }) => addresses.filter(needsDevice)))
    const missing = [...wanted].filter((ip) => full || !this.#held.has(ip))
    if (missing.length === 0) return []
    const failed = await this.#add(missing)
    return services.flatMap(({ key, addresses }) => {
      const reason = addresses.map((ip) => failed.get(ip)).find((text) => text !== undefined)
      return reason === undefined ? [] : [{ key, reason, event: 'AddressFailed' }]
    })
  }

  async replaceAll(_: unknown, leave: Leave): Promise<WriteOutcome> {
    // Where addresses cannot be changed, no process can have added any.
    const link = await this.#open().catch(() => undefined)
    for (const ip of (await link?.ours(this.#family)) ?? []) this.#held.add(ip)
    return this.change(_, leave)
  }

  async change(_: unknown, leave: Leave): Promise<WriteOutcome> {
    const wanted = new Set(this.#expected())
    const unused = [...this.#held].filter((ip) => !wanted.has(ip))
    if (unused.length > 0) {
      await leave(unused)
      const link = await this.#open()
      warn(await link.remove(this.#family, unused), this.#log)
      for (const ip of unused) this.#held.delete(ip)
    }
    return { bytes: 0, objects: unused.length, changed: [] }
  }

  async isIntact(): Promise<boolean> {
    if (this.#held.size === 0) return true
    const held = [...this.#held]
    const before = new Set([...held, ...this.#expected()])
    const link = await this.#open()
    const present = new Set(await link.ours(this.#family))
    const absent = held.filter((ip) => !present.has(ip))
    const foreign = absent.length > 0 ? await link.foreign(this.#family, absent) : present
    // An address that a sync has removed meanwhile is not missing, and one that it adds is ours.
    if (absent.some((ip) => !foreign.has(ip) && this.#held.has(ip))) return false
    const after = new Set([...this.#held, ...this.#expected()])
    return [...present].every((ip) => before.has(ip) || after.has(ip))
  }

  #expected(): Iterable<string> {
    return [...this.#wanted.values()].flat()
  }

  /** New clients are refused once listeners close. Open connections need the addresses. */
  remove(): Promise<ReadonlySet<number>> {
    return Promise.resolve(new Set())
  }

  async drained(): Promise<void> {
    this.#wanted.clear()
    if (this.#held.size > 0) await removeAddresses(await this.#open(), this.#family, this.#log)
    this.#held.clear()
  }

  /** The addresses that could not be added, and why. */
  async #add(ips: readonly string[]): Promise<ReadonlyMap<string, string>> {
    const failed = new Map<string, string>()
    let advice = ''
    try {
      const link = await this.#open()
      advice = link.whenDenied
      // An address that the node has anyway, such as an external IP, is never removed.
      const foreign = await link.foreign(this.#family, ips)
      const own = ips.filter((ip) => !foreign.has(ip))
      const refused = await link.add(this.#family, own)
      for (const { ip, error } of refused) failed.set(ip, explain(ip, error, advice))
      for (const ip of own) if (!failed.has(ip)) this.#held.add(ip)
    } catch (error) {
      for (const ip of ips) failed.set(ip, explain(ip, error, advice))
    }
    return failed
  }

  /** After a failure the next call tries again. */
  #open(): Promise<LinkAddresses> {
    const opening = (this.#link ??= this.#openLink())
    opening.catch(() => (this.#link = undefined))
    return opening
  }
}

/** Removes the addresses that processes of this mode have added to this machine. */
export async function removeAddresses(
  link: LinkAddresses,
  family: IpFamily,
  log: Log,
): Promise<void> {
  const failures = await link.remove(family, await link.ours(family))
  await link.tidy()
  warn(failures, log)
}

function warn(failures: readonly AddressFailure[], log: Log): void {
  for (const { ip, error } of failures) {
    log.warn({ ip, error: error.message }, 'remove the address of a Service')
  }
}

/** False for loopback addresses: every machine has all of 127.0.0.0/8, and ::1. */
export function needsDevice(ip: string): boolean {
  return isNotLoopback(ip)
}

function explain(ip: string, error: unknown, whenDenied: string): string {
  const isDenied = error instanceof KernelError && error.kind === 'denied'
  return `put ${ip} on this machine: ${messageOf(error)}${isDenied && whenDenied !== '' ? `; ${whenDenied}` : ''}`
}
