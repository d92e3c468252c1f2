import type { KernelError } from '../errors.js'
import type { IpFamily } from '../state/ip.js'

/** An address whose change the kernel refused, or did not do. */
export interface AddressFailure {
  readonly ip: string
  readonly error: KernelError
}

/**
 * Single addresses (/32, /128) that this program puts on a link of this machine, so that it can
 * listen on them. Three classes implement it: over rtnetlink, and on Windows over iphlpapi and
 * netsh.
 */
export interface LinkAddresses {
  /** Advice for the user when the operating system does not permit a change. */
  readonly whenDenied: string
  /**
   * The addresses that this program has put there, also in earlier runs. Never those of others, but
   * for a device of this program alone: an address that somebody put there with a prefix names it.
   */
  ours(family: IpFamily): Promise<readonly string[]>
  /**
   * Those of `ips` that this machine has without this program. They stay when this program ends.
   */
  foreign(family: IpFamily, ips: readonly string[]): Promise<ReadonlySet<string>>
  /** Puts the addresses on the link. An address of ours may be there already. */
  add(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]>
  /** Removes those of `ips` that are ours, with any prefix. Other addresses are left alone. */
  remove(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]>
  /** Removes the link itself, if this program made it and nothing is on it. */
  tidy(): Promise<void>
  close(): void
}
