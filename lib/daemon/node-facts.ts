import { existsSync, readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { ConfigError } from '../errors.js'
import { isLinux } from '../platform.js'
import { interfaceAddresses } from '../sources/node-addresses.js'
import type { Log } from '../modes/mode.js'
import type { IpFamily } from '../state/ip.js'

/** L02: the override, or else the name of the host; trimmed, in lower case. */
export function nodeNameOf(override: string, host = hostname()): string {
  const name = (override === '' ? host : override).trim().toLowerCase()
  if (name === '') {
    throw new ConfigError(
      '--hostname-override: the flag is blank, and so is the name of this host; give a name',
    )
  }
  return name
}

/** L10: IPv4 always, and IPv6 where the kernel has it and it is not disabled. */
export function ipFamilies(root = isLinux() ? '/proc' : undefined): readonly IpFamily[] {
  if (root === undefined) return interfaceAddresses()?.some(isIpv6) ? ['IPv4', 'IPv6'] : ['IPv4']
  if (!existsSync(`${root}/net/if_inet6`)) return ['IPv4']
  try {
    const disabled = readFileSync(`${root}/sys/net/ipv6/conf/all/disable_ipv6`, 'utf8').trim()
    return disabled === '1' ? ['IPv4'] : ['IPv4', 'IPv6']
  } catch {
    return ['IPv4', 'IPv6']
  }
}

/**
 * Returns what is to be called when addresses of this node have changed. It warns when the node has
 * a family that it lacked at the start: the proxy, like kube-proxy, settles the families then.
 */
export function familyWatch(
  families: readonly IpFamily[],
  log: Pick<Log, 'warn'>,
  present = ipFamilies,
): () => void {
  let told: readonly IpFamily[] = families
  return () => {
    const now = present()
    for (const family of now.filter((each) => !told.includes(each))) {
      const message = `${family} was off when this proxy started, and is on now: no Service is served over ${family} until the proxy is restarted`
      log.warn({ family }, message)
    }
    told = [...families, ...now]
  }
}

const isIpv6 = (address: string) => address.includes(':')
