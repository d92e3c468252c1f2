import { KernelError, messageOf } from '../../errors.js'

/**
 * The functions of iphlpapi.dll that are used, on rows of bytes (see ip-helper-writer.ts). Each
 * returns an error number of Windows; 0 is success.
 */
export interface IpHelper {
  /** The number (LUID) of the interface of this name. */
  luidOf(name: string): { readonly status: number; readonly luid: bigint }
  /** Fills a row with the values that mean "unchanged" to this release of Windows. */
  initialize(row: Uint8Array): void
  create(row: Uint8Array): number
  delete(row: Uint8Array): number
  /** All rows of one family, as a copy. */
  table(family: number): { readonly status: number; readonly rows: Buffer }
}

/** Bytes of a MIB_UNICASTIPADDRESS_ROW of 64-bit Windows. */
export const rowBytes = 80

/** The number of rows, and padding for the first one. */
const tableHeaderBytes = 8

/** Throws a KernelError where koffi, the library or one of its functions is missing. */
export async function loadIpHelper(): Promise<IpHelper> {
  try {
    const { default: koffi } = await import('koffi')
    const library = koffi.load('iphlpapi.dll')
    const toLuid = library.func('uint32 ConvertInterfaceAliasToLuid(str16, void *)')
    const initialize = library.func('void InitializeUnicastIpAddressEntry(void *)')
    const create = library.func('uint32 CreateUnicastIpAddressEntry(void *)')
    const remove = library.func('uint32 DeleteUnicastIpAddressEntry(void *)')
    const getTable = library.func('uint32 GetUnicastIpAddressTable(uint16, void *)')
    const free = library.func('void FreeMibTable(uintptr_t)')
    return {
      luidOf(name) {
        const luid = new BigUint64Array(1)
        const status = Number(toLuid(name, luid))
        return { status, luid: luid[0] ?? 0n }
      },
      initialize: (row) => void initialize(row),
      create: (row) => Number(create(row)),
      delete: (row) => Number(remove(row)),
      table(family) {
        const pointer = new BigUint64Array(1)
        const status = Number(getTable(family, pointer))
        const address = pointer[0] ?? 0n
        if (status !== 0 || address === 0n) return { status, rows: Buffer.alloc(0) }
        try {
          const count = new DataView(koffi.view(address, tableHeaderBytes)).getUint32(0, true)
          const all = koffi.view(address, tableHeaderBytes + count * rowBytes)
          return { status, rows: Buffer.from(all.slice(tableHeaderBytes)) }
        } finally {
          free(address)
        }
      },
    }
  } catch (cause) {
    const reason = `load iphlpapi.dll with koffi: ${messageOf(cause)}`
    throw new KernelError('unsupported', reason, { cause })
  }
}
