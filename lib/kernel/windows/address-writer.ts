import type { IpFamily } from '../../state/ip.js'

/** An address that Windows shows. */
export interface SeenAddress {
  readonly ip: string
  /** Whether it is a single address (/32, /128). */
  readonly isSingle: boolean
}

/** One way to change the addresses of one interface of Windows. */
export interface AddressWriter {
  /** For messages: `iphlpapi`, `netsh`. */
  readonly name: string
  /** The addresses of the interface. */
  read(family: IpFamily): Promise<readonly SeenAddress[]>
  /**
   * Throws a KernelError, of kind `exists` for an existing address. Without an error the address
   * may still be missing.
   */
  add(family: IpFamily, ip: string): Promise<void>
  /** Throws a KernelError, of kind `not-found` for a missing address. */
  remove(family: IpFamily, ip: string): Promise<void>
}
