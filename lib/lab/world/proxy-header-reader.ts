import { formatIp, hostPort } from '../../state/ip.js'

/**
 * The content of a PROXY header. This reader shares no code with the proxy's writer, to check it.
 */
export interface Announced {
  /** `ip:port` of the client. */
  readonly client: string
  /** `ip:port` that it asked. */
  readonly asked: string
}

interface ReadHeader {
  readonly announced: Announced
  /** Its length in bytes. */
  readonly length: number
}

const signature = '\r\n\r\n\0\r\nQUIT\n'

/** The header at the beginning of a text of single bytes; undefined when there is none. */
export function readProxyHeader(text: string): ReadHeader | undefined {
  return text.startsWith(signature) ? readBinary(text) : readText(text)
}

function readText(text: string): ReadHeader | undefined {
  const found = /^PROXY TCP[46] (\S+) (\S+) (\d+) (\d+)\r\n/.exec(text)
  if (!found) return undefined
  const [line, from = '', to = '', fromPort, toPort] = found
  return {
    announced: { client: hostPort(from, Number(fromPort)), asked: hostPort(to, Number(toPort)) },
    length: line.length,
  }
}

function readBinary(text: string): ReadHeader | undefined {
  const bytes = Buffer.from(text, 'latin1')
  if (bytes.length < 16 || bytes[12] !== 0x21) return undefined
  const length = 16 + bytes.readUInt16BE(14)
  const size = bytes.readUInt8(13) >> 4 === 1 ? 4 : 16
  if (bytes.length < length) return undefined
  const at = (start: number, port: number) => {
    const value = BigInt(`0x${bytes.toString('hex', start, start + size)}`)
    return hostPort(formatIp(size === 4 ? 'IPv4' : 'IPv6', value), bytes.readUInt16BE(port))
  }
  const ports = 16 + 2 * size
  return { announced: { client: at(16, ports), asked: at(16 + size, ports + 2) }, length }
}
