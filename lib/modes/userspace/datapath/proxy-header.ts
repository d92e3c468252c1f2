import { encodeAddress, type SocketAddress } from '../../../kernel/sockets/socket-address.js'

/** The PROXY header of a Service: tells an endpoint who its client is, before the first byte. */
export interface ProxyHeader {
  readonly version: 1 | 2
  /**
   * The address to name as the one that the client asked, where the kernel cannot tell. Undefined:
   * the client asked the socket's own address.
   */
  readonly asked: SocketAddress | undefined
}

/**
 * The bytes of a header, as text (version 1) or binary (version 2). TLVs are left out, because
 * nothing that they could say is known here. Version 1 of the format has no form for datagrams.
 */
export function encodeProxyHeader(
  version: ProxyHeader['version'],
  protocol: 'TCP' | 'UDP',
  client: SocketAddress,
  asked: SocketAddress,
): Uint8Array {
  if (version === 1) {
    const family = client.ip.includes(':') ? 'TCP6' : 'TCP4'
    return Buffer.from(
      `PROXY ${family} ${client.ip} ${asked.ip} ${client.port} ${asked.port}\r\n`,
      'latin1',
    )
  }
  const from = encodeAddress(client)
  const to = encodeAddress(asked)
  const [family, start, end] =
    from.length === 16 ? ([0x10, 4, 8] as const) : ([0x20, 8, 24] as const)
  const ports = 2
  return Buffer.concat([
    signature,
    Uint8Array.of(proxied, family | (protocol === 'TCP' ? 1 : 2), 0, 2 * (end - start + ports)),
    from.subarray(start, end),
    to.subarray(start, end),
    from.subarray(ports, 2 * ports),
    to.subarray(ports, 2 * ports),
  ])
}

const signature = Uint8Array.of(13, 10, 13, 10, 0, 13, 10, 81, 85, 73, 84, 10)
/** Version 2, and the connection is one of a client and not of the proxy itself. */
const proxied = 0x21
