import { parseIp } from '../../state/ip.js'
import type { NftFamily, NftSet } from './model.js'
import type { Remembered } from './reader.js'

/**
 * The content of sets with a timeout, by name, from `nft -j list sets`. Other sets are left out. So
 * are elements of another type, because the set is then a foreign one with the same name.
 */
export function rememberedIn(
  json: string,
  family: NftFamily,
  sets: readonly NftSet[],
): ReadonlyMap<string, readonly Remembered[]> {
  const wanted = new Set(sets.map(({ name }) => name))
  const found = new Map<string, readonly Remembered[]>()
  for (const item of listOf(fieldOf(JSON.parse(json), 'nftables'))) {
    const set = fieldOf(item, 'set')
    const name = fieldOf(set, 'name')
    if (typeof name !== 'string' || !wanted.has(name)) continue
    found.set(
      name,
      listOf(fieldOf(set, 'elem')).flatMap((item) => rememberedOf(family, item)),
    )
  }
  return found
}

function rememberedOf(family: NftFamily, item: unknown): readonly Remembered[] {
  const element = fieldOf(item, 'elem')
  const [address, seconds] = [fieldOf(element, 'val'), fieldOf(element, 'expires')]
  if (typeof address !== 'string' || typeof seconds !== 'number') return []
  if (parseIp(address)?.family !== (family === 'ip' ? 'IPv4' : 'IPv6')) return []
  return [{ address, expiresMs: seconds * 1000 }]
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [])

function fieldOf(value: unknown, field: string): unknown {
  return value !== null && typeof value === 'object' && Object.hasOwn(value, field)
    ? (value as Record<string, unknown>)[field]
    : undefined
}
