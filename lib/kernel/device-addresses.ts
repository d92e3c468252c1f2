import { KernelError, messageOf } from '../errors.js'
import { ipFamilies, type IpFamily } from '../state/ip.js'
import type { AddressFailure, LinkAddresses } from './link-addresses.js'
import type { Links } from './links.js'

/** The part of {@link Links} that is used here. */
export type DeviceLinks = Pick<
  Links,
  'find' | 'ensureDummy' | 'remove' | 'addresses' | 'addAddresses' | 'deleteAddresses' | 'close'
>

interface DeviceOptions {
  /** The dummy device of this program. */
  readonly device: string
  /** The metric of its addresses. On `lo` it marks them as ours, also after a crash. */
  readonly mark: number
  /** Called with the reason when the addresses go to `lo` instead. */
  readonly onLoopback: (reason: string) => void
}

/**
 * Uses rtnetlink. The addresses go to a dummy device of this program, or to `lo` where the kernel
 * has no dummy devices.
 */
export class DeviceAddresses implements LinkAddresses {
  readonly whenDenied =
    'this needs the capability NET_ADMIN; without it only Services on 127.0.0.0/8 can be served'
  readonly #links: DeviceLinks
  readonly #options: DeviceOptions
  /** `lo`, once the kernel has refused a device. */
  #loopback: number | undefined

  constructor(links: DeviceLinks, options: DeviceOptions) {
    this.#links = links
    this.#options = options
  }

  async ours(family: IpFamily): Promise<readonly string[]> {
    const ips = new Set<string>()
    for (const index of this.#devices()) {
      for (const ip of await this.#oursOn(family, index)) ips.add(ip)
    }
    return [...ips]
  }

  async foreign(family: IpFamily, ips: readonly string[]): Promise<ReadonlySet<string>> {
    const ours = new Set((await this.ours(family)).map(withoutPrefix))
    const all = new Set(await this.#links.addresses(family))
    return new Set(ips.filter((ip) => all.has(ip) && !ours.has(ip)))
  }

  async add(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]> {
    const device = this.#ensureDevice()
    // IPv6 takes an address only once on a device, so one with a prefix keeps the single one out.
    const wanted = new Set(ips)
    const wide = (await this.#oursOn(family, device)).filter(
      (ip) => !wanted.has(ip) && wanted.has(withoutPrefix(ip)),
    )
    await this.#links.deleteAddresses(family, device, wide)
    const failures = await this.#links.addAddresses(family, device, ips, this.#options.mark)
    const failed = new Set(failures.map(({ ip }) => ip))
    const added = new Set(ips.filter((ip) => !failed.has(ip)))
    const moved: AddressFailure[] = []
    for (const index of this.#devices()) {
      if (index === device) continue
      const left = (await this.#oursOn(family, index)).filter((ip) => added.has(ip))
      moved.push(...(await this.#links.deleteAddresses(family, index, left)))
    }
    return [...failures, ...moved]
  }

  async remove(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]> {
    const unwanted = new Set(ips)
    const failures: AddressFailure[] = []
    for (const index of this.#devices()) {
      const ours = (await this.#oursOn(family, index)).filter(
        (ip) => unwanted.has(ip) || unwanted.has(withoutPrefix(ip)),
      )
      failures.push(...(await this.#links.deleteAddresses(family, index, ours)))
    }
    return failures
  }

  async tidy(): Promise<void> {
    const own = this.#links.find(this.#options.device)
    if (own === undefined) return
    for (const family of ipFamilies) {
      if ((await this.#oursOn(family, own)).length > 0) return
    }
    this.#links.remove(this.#options.device)
  }

  close(): void {
    this.#links.close()
  }

  /** The devices that may have addresses of ours: our own device, and `lo`. */
  #devices(): readonly number[] {
    const { device } = this.#options
    return [this.#links.find(device), this.#links.find('lo')].filter((index) => index !== undefined)
  }

  /** Every address on our own device, and those with our mark on `lo`. */
  async #oursOn(family: IpFamily, index: number): Promise<readonly string[]> {
    const on = { on: index, prefixes: true } as const
    if (index === this.#links.find('lo')) {
      return this.#links.addresses(family, { ...on, metric: this.#options.mark })
    }
    const all = await this.#links.addresses(family, on)
    return all.filter((ip) => !isAutomatic(ip))
  }

  /** Looks for the device each time, because somebody may have removed it. */
  #ensureDevice(): number {
    const { device } = this.#options
    const known = this.#links.find(device) ?? this.#loopback
    if (known !== undefined) return known
    try {
      return this.#links.ensureDummy(device)
    } catch (error) {
      const loopback = this.#links.find('lo')
      const isDenied = error instanceof KernelError && error.kind === 'denied'
      if (loopback === undefined || isDenied) throw error
      this.#options.onLoopback(messageOf(error))
      this.#loopback = loopback
      return loopback
    }
  }
}

/** Whether the kernel gave the address to the device by itself, as it does for IPv6 once it is up. */
export function isAutomatic(ip: string): boolean {
  return ip.startsWith('fe80:')
}

function withoutPrefix(ip: string): string {
  return ip.replace(/\/.*/, '')
}
