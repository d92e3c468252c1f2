import type { KernelError } from '../errors.js'
import type { IpFamily } from '../state/ip.js'

/** An address whose change the kernel refused, or did not do. */
export interface AddressFailure {
  readonly ip: string
  readonly error: KernelError
}

/**
 * Single addresses (/32, /128) that this program puts on a link of this machine, so that it can
 * listen on them. Three things implement it: rtnetlink, and on Windows iphlpapi and netsh.
 */
export interface LinkAddresses {
  /** What to do when the operating system does not permit a change. */
  readonly whenDenied: string
  /** Those that this program has put there, also in earlier runs. Never those of others. */
  ours(family: IpFamily): Promise<readonly string[]>
  /** Which of these this machine has without this program. They stay when it goes. */
  foreign(family: IpFamily, ips: readonly string[]): Promise<ReadonlySet<string>>
  /** Puts them on the link; one of ours that is there already is fine. */
  add(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]>
  /** Removes those that are ours. What is not there, or not ours, is left alone. */
  remove(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]>
  /** Removes the link itself, if this program made it and nothing is on it. */
  tidy(): Promise<void>
  close(): void
}
