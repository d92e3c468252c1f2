import { ConfigError } from '../errors.js'
import { cidrContains, isLoopback, parseCidr, parseIp, withoutBrackets } from '../state/ip.js'

type Environment = Readonly<Record<string, string | undefined>>

interface Way {
  readonly server: string
  /** `proxy-url` of the kubeconfig. */
  readonly proxy?: string | undefined
}

interface Target {
  readonly host: string
  readonly port: string
}

export function isSocks(proxy: string | undefined): boolean {
  return proxy?.startsWith('socks') ?? false
}

/**
 * The HTTP or HTTPS proxy on the way to the API server. Without one in the kubeconfig the
 * environment decides, as in all programs in Go: HTTPS_PROXY or HTTP_PROXY, unless NO_PROXY names
 * the server. kubeadm copies these variables into the pod of kube-proxy.
 */
export function chosenProxy({ server, proxy }: Way, env: Environment): URL | undefined {
  if (isSocks(proxy)) return undefined
  if (proxy) return parseProxy('proxy-url in the kubeconfig', proxy)
  const { protocol, hostname, port } = new URL(server)
  const [name, usual] =
    protocol === 'https:' ? (['HTTPS_PROXY', '443'] as const) : (['HTTP_PROXY', '80'] as const)
  const named = valueOf(env, name)
  const target = { host: withoutBrackets(hostname), port: port || usual }
  if (named === '' || isOwnMachine(target)) return undefined
  const direct = valueOf(env, 'NO_PROXY').toLowerCase().split(',')
  if (direct.some((entry) => isNamedBy(entry.trim(), target))) return undefined
  return parseProxy(`${name} in the environment`, named)
}

function valueOf(env: Environment, name: string): string {
  return env[name] || env[name.toLowerCase()] || ''
}

function isOwnMachine({ host }: Target): boolean {
  const ip = parseIp(host)
  return ip ? isLoopback(ip) : host === 'localhost'
}

/** An entry is `*`, a range, an address, or a domain. The last two may have a port. */
function isNamedBy(entry: string, { host, port }: Target): boolean {
  if (entry === '*') return true
  const ip = parseIp(host)
  const range = parseCidr(entry)
  if (range) return ip !== undefined && cidrContains(range, ip)
  const [, bracketed, bare, wanted = port] = /^(?:\[(.+)\]|([^:]*))(?::(\d+))?$/.exec(entry) ?? []
  const name = bracketed ?? bare ?? entry
  if (wanted !== port) return false
  if (ip) return parseIp(name)?.text === ip.text
  // `.example.com` means what is below it; `example.com` means itself, too.
  const parent = name.replace(/^\*(?=\.)/, '')
  if (parent.startsWith('.')) return host.endsWith(parent)
  return parent !== '' && (host === parent || host.endsWith(`.${parent}`))
}

/** The value may hold a password, so no message shows it. */
function parseProxy(what: string, text: string): URL {
  const url = /^[a-z][a-z\d+.-]*:\/\//i.test(text) ? text : `http://${text}`
  if (!URL.canParse(url)) throw new ConfigError(`${what} is not a URL of a proxy`)
  const proxy = new URL(url)
  if (/^https?:$/.test(proxy.protocol)) return proxy
  throw new ConfigError(
    `${what} names a proxy of the kind ${proxy.protocol}//; there are http:// and https://, and ` +
      'for SOCKS proxy-url in the kubeconfig with socks5://',
  )
}
