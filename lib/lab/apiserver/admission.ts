import type { IncomingMessage } from 'node:http'
import { isLoopback, isUnspecified, parseIp } from '../../state/ip.js'
import { forbidden, unsupportedMediaType } from './status.js'

/**
 * Refuses pages in a browser of this machine, because the server accepts every client that reaches
 * it. A foreign name in Host is one that its DNS server points here (DNS rebinding). Other foreign
 * pages are known by Origin, or by Sec-Fetch-Site where the browser sends no Origin.
 */
export function admit(request: IncomingMessage, listenHost: string): void {
  const { host = '', origin } = request.headers
  if (!isOurName(nameOf(host), listenHost)) {
    throw forbidden(
      `the Host header ${JSON.stringify(host)} does not name this server; use localhost, a loopback address or the address that it listens on`,
    )
  }
  if (origin !== undefined && !isSame(origin, host)) {
    throw forbidden(`pages of ${JSON.stringify(origin)} may not use this server`)
  }
  // Another port of localhost is the same site, but not the same program.
  const site = request.headers['sec-fetch-site']
  if (site === 'cross-site' || site === 'same-site') {
    throw forbidden(`requests of other sites' pages are refused (Sec-Fetch-Site: ${site})`)
  }
}

const bodyTypes = /^application\/(?:[a-z-]+\+)?(?:json|yaml)$/

/** Accepts only types that browsers do not send to another site without asking it first. */
export function checkBodyType(type: string, protobufType: string): void {
  if (type === protobufType || bodyTypes.test(type)) return
  throw unsupportedMediaType(type, ['application/json', 'application/yaml', protobufType])
}

function isOurName(name: string, listenHost: string): boolean {
  const address = parseIp(name)
  if (name === 'localhost' || name === listenHost.toLowerCase()) return true
  if (address === undefined) return false
  const listening = parseIp(listenHost)
  // A server on all addresses is reached by any of them, and DNS cannot fake an address.
  return isLoopback(address) || (listening !== undefined && isUnspecified(listening))
}

/** `[::1]:80` and `localhost:80` without brackets and port. */
function nameOf(host: string): string {
  const found = /^(?:\[([^\]]*)\]|([^:]*))(?::\d*)?$/.exec(host)
  return (found?.[1] ?? found?.[2] ?? '').toLowerCase()
}

function isSame(origin: string, host: string): boolean {
  return URL.canParse(origin) && new URL(origin).host === host.toLowerCase()
}
