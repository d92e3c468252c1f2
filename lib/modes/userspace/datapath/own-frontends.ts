import { hostPort } from '../../../state/ip.js'

interface Place {
  /** `ip:port` or `[ip]:port`. */
  readonly key: string
  readonly ip: string
  readonly port: number
}

/**
 * Where this proxy itself answers: `TCP 10.96.0.10:80`, or `TCP *:30080` at any local address. These
 * are frontends, too: `192.0.2.1`.
 */
export type Frontend = string

export function frontend(protocol: string, address: string, port: number): Frontend {
  const isWildcard = address === '' || address === '0.0.0.0' || address === '::'
  return `${protocol} ${isWildcard ? `*:${port}` : hostPort(address, port)}`
}

/**
 * The frontends of all Services. An endpoint that is one of them leads back here: a single
 * connection to it would make connections until there are no descriptors left.
 */
export class OwnFrontends {
  readonly #byService = new Map<string, readonly Frontend[]>()
  readonly #counts = new Map<Frontend, number>()

  /** Without frontends the Service is forgotten. Returns whether anything has changed. */
  set(service: string, frontends: readonly Frontend[]): boolean {
    const before = this.#byService.get(service) ?? []
    if (before.length === frontends.length && before.every((old, at) => old === frontends[at])) {
      return false
    }
    for (const old of before) {
      const left = (this.#counts.get(old) ?? 1) - 1
      if (left > 0) this.#counts.set(old, left)
      else this.#counts.delete(old)
    }
    if (frontends.length > 0) this.#byService.set(service, frontends)
    else this.#byService.delete(service)
    for (const one of frontends) this.#counts.set(one, (this.#counts.get(one) ?? 0) + 1)
    return true
  }

  has(protocol: 'TCP' | 'UDP', { key, ip, port }: Place): boolean {
    if (this.#counts.has(`${protocol} ${key}`)) return true
    return this.#counts.has(`${protocol} *:${port}`) && this.#counts.has(ip)
  }
}
