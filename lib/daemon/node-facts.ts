import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { ConfigError, messageOf } from '../errors.js'
import type { IpFamily } from '../state/ip.js'

/** L02: the override or the host's name, without blanks, in lower case. */
export function nodeNameOf(override: string, host = hostname()): string {
  const name = (override === '' ? host : override).trim().toLowerCase()
  if (name === '') {
    throw new ConfigError(
      '--hostname-override: is blank, and so is the name of this host; give one',
    )
  }
  return name
}

/** L10: IPv4 always; IPv6 where the kernel has it and nobody switched it off. */
export function ipFamilies(root = '/proc'): readonly IpFamily[] {
  if (!existsSync(`${root}/net/if_inet6`)) return ['IPv4']
  try {
    const disabled = readFileSync(`${root}/sys/net/ipv6/conf/all/disable_ipv6`, 'utf8').trim()
    return disabled === '1' ? ['IPv4'] : ['IPv4', 'IPv6']
  } catch {
    return ['IPv4', 'IPv6']
  }
}

/** L13: tells the kernel to kill others first. Returns why that failed, which is not fatal. */
export function setOomScore(score: number, root = '/proc'): string | undefined {
  try {
    writeFileSync(`${root}/self/oom_score_adj`, String(score))
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}
