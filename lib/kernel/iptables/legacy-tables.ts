import { readFileSync } from 'node:fs'

/**
 * The tables of the legacy backend in this network namespace, from where its save program has them.
 * Undefined where they cannot be read: root alone may.
 */
export function legacyTables(family: 'IPv4' | 'IPv6'): readonly string[] | undefined {
  const file = family === 'IPv4' ? 'ip_tables_names' : 'ip6_tables_names'
  try {
    return readFileSync(`/proc/net/${file}`, 'utf8').split('\n').filter(Boolean)
  } catch (error) {
    const isAbsent = error instanceof Error && 'code' in error && error.code === 'ENOENT'
    return isAbsent ? [] : undefined
  }
}
