import type { IpFamily } from '../../state/ip.js'

/** An address that Windows shows. */
export interface SeenAddress {
  readonly ip: string
  /** It is a single address (/32, /128). */
  readonly isSingle: boolean
}

/** One way to change the addresses of one interface of Windows. */
export interface AddressWriter {
  /** For messages: `iphlpapi`, `netsh`. */
  readonly name: string
  /** The addresses of the interface. */
  read(family: IpFamily): Promise<readonly SeenAddress[]>
  /** Throws a KernelError; `exists` is one. That it does not throw proves nothing. */
  add(family: IpFamily, ip: string): Promise<void>
  /** Throws a KernelError; `not-found` is one. */
  remove(family: IpFamily, ip: string): Promise<void>
}
