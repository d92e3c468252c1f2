import { BpfMap, openTogether, type MapEntry } from '../../kernel/bpf/map.js'
import { MappedArray } from '../../kernel/bpf/mapped-array.js'
import { KernelError } from '../../errors.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import type { IpFamily } from '../../state/ip.js'
import {
  backendOf,
  memberKey,
  memberKeyOf,
  mostBackends,
  mostEndpoints,
  noService,
  rememberedIn,
  serviceIdWord,
  serviceWord,
  serviceWords,
  targetId,
  writeBackend,
  type Target,
} from './layout.js'
import {
  frontendEntry,
  frontendKey,
  nodeAddressKey,
  frontendKeyOf,
  frontendValue,
  nodeAddressEntry,
} from './frontend-layout.js'
import { mapNames } from './names.js'
import { Places, roundedSize } from './places.js'
import type { NodeAddress, SocketPlan, TargetList } from './plan.js'
import type { FamilyMaps } from './programs/view.js'

type TableSizes = Readonly<Record<keyof FamilyMaps, number>>

/** A plan does not fit: larger tables are needed. */
export class TablesFull extends Error {
  override readonly name = 'TablesFull'
}

/** A target list and its places in the maps. */
interface Placed {
  readonly list: TargetList
  readonly slot: number
  readonly first: number
  readonly count: number
  /** Marks the endpoints of this list at these places. */
  readonly tag: number
}

/** Twice what a plan needs, so that changes fit and freed places can wait before they are used. */
export function sizesFor(plan: SocketPlan | undefined): TableSizes {
  let [services, backends, members] = [0, 0, 0]
  for (const { targets } of plan?.parts.values() ?? []) {
    for (const { endpoints, isRemembered, kept } of targets) {
      services++
      backends += roundedSize(Math.min(endpoints.length, mostEndpoints))
      if (isRemembered) members += endpoints.length + kept.length
    }
  }
  const frontends = (plan?.frontends.size ?? 0) + (plan?.nodeAddresses.length ?? 0)
  const room = (needed: number) => 2 ** Math.ceil(Math.log2(Math.max(64, 2 * needed)))
  return {
    frontends: room(frontends),
    services: room(services),
    backends: Math.min(room(backends), mostBackends),
    members: room(members),
  }
}

/** The maps of one family, and the places of target lists in them. */
export class FamilyTables {
  readonly family: IpFamily
  readonly frontends: BpfMap
  readonly services: MappedArray
  readonly backends: MappedArray
  readonly members: BpfMap
  isClosed = false
  /** How many entries the map `members` has at most. Lists with one number share entries. */
  mostMembers = 0
  readonly #sizes: TableSizes
  readonly #slots: Places
  readonly #blocks: Places
  readonly #placed = new Map<string, Placed>()
  readonly #backend: Buffer
  readonly #backendWords: BigInt64Array
  #tag = 0
  #hasLost = false

  constructor(calls: SystemCalls, family: IpFamily, sizes: TableSizes, now: () => number) {
    this.family = family
    this.#sizes = sizes
    this.#backendWords = new BigInt64Array(backendOf(family).words)
    this.#backend = Buffer.from(this.#backendWords.buffer)
    this.#slots = new Places(sizes.services, now)
    this.#blocks = new Places(sizes.backends, now)
    const opened = openTogether((open) => {
      const hash = (name: 'frontends' | 'members', keyBytes: number, valueBytes: number) => {
        const form = { kind: 'hash', keyBytes, valueBytes } as const
        return open(BpfMap.create(calls, { name: mapNames[name], ...form, entries: sizes[name] }))
      }
      const array = (name: 'services' | 'backends', wordsPerEntry: number) =>
        open(new MappedArray(calls, { name: mapNames[name], entries: sizes[name], wordsPerEntry }))
      return {
        frontends: hash('frontends', frontendKeyOf(family).bytes, frontendValue.bytes),
        services: array('services', serviceWords),
        backends: array('backends', backendOf(family).words),
        members: hash('members', memberKeyOf(family).bytes, 1),
      }
    })
    this.frontends = opened.frontends
    this.services = opened.services
    this.backends = opened.backends
    this.members = opened.members
  }

  /**
   * Writes the difference between two plans. Programs always find complete entries, because it
   * writes the endpoints first, then the word that leads to them, then the frontends. Returns how
   * many entries it wrote. Throws TablesFull if there is no room; the entries stay usable then.
   */
  write(plan: SocketPlan, previous: SocketPlan | undefined): number {
    const sizes = plan.frontends.size + plan.nodeAddresses.length
    if (sizes > this.#sizes.frontends) throw new TablesFull()
    const { added, changed, removed } = plan.parts.since(previous?.parts)
    const lists = [...added, ...changed].flatMap(([, { targets }]) => targets)
    const kept = new Set(lists.map(({ id }) => id))
    const gone = [
      ...removed.map(([, part]) => part),
      ...changed.map(([, , before]) => before),
    ].flatMap(({ targets }) => targets.filter(({ id }) => !kept.has(id)))
    let written = this.#placeAll(lists)
    written += this.#writeFrontends(plan, previous)
    for (const { id } of gone) written += this.#remove(id)
    return written
  }

  /** Whether endpoints or UDP frontends went since the last call. Sockets may still use them. */
  takeLost(): boolean {
    const hasLost = this.#hasLost
    this.#hasLost = false
    return hasLost
  }

  /** The places of a target list; undefined if it has none. */
  placed(id: string): Placed | undefined {
    return this.#placed.get(id)
  }

  /** Whether the endpoint is at this place of the map `backends`, as it was written there. */
  holdsBackend(place: number, endpoint: Target, tag: number): boolean {
    writeBackend(this.#backend, this.family, endpoint, tag)
    return this.backends.holdsEntry(place, this.#backendWords)
  }

  /** Whether the map `frontends` has this value for a key. */
  holdsFrontend(key: Buffer, value: Buffer): boolean {
    return this.frontends.lookup(key)?.equals(value) === true
  }

  close(): void {
    this.isClosed = true
    for (const each of [this.frontends, this.services, this.backends, this.members]) each.close()
  }

  #placeAll(lists: readonly TargetList[]): number {
    const fresh = lists.filter((list) => this.#placed.get(list.id)?.list !== list)
    const remembered = fresh.filter(({ isRemembered }) => isRemembered)
    fill(
      this.members,
      remembered.flatMap((list) => this.#membersOf(list)),
    )
    let written = 0
    for (const list of fresh) written += this.#place(list)
    return written
  }

  #place(list: TargetList): number {
    const before = this.#placed.get(list.id)
    const slot = before?.slot ?? this.#slots.take(1)
    const endpoints = list.endpoints.slice(0, mostEndpoints)
    const count = endpoints.length
    const first = count === 0 ? 0 : this.#blocks.take(count)
    if (slot === undefined || first === undefined) throw new TablesFull()
    const tag = (this.#tag = (this.#tag + 1) & 0xffff)
    let place = first
    for (const endpoint of endpoints) {
      writeBackend(this.#backend, this.family, endpoint, tag)
      this.backends.storeEntry(place++, this.#backendWords)
    }
    this.services.store(slot, 1, serviceIdWord(targetId(list.id), list.affinitySeconds))
    this.services.store(slot, 0, leadOf(list, { first, count, tag }))
    this.#placed.set(list.id, { list, slot, first, count, tag })
    this.mostMembers += rememberedIn(list).size
    if (before) this.#leave(before, list)
    return count + 1
  }

  /** Frees what a list had before and no longer has. */
  #leave(before: Placed, now: TargetList | undefined): void {
    if (before.count > 0) this.#blocks.giveBack(before.first, before.count)
    const members = this.#membersOf(before.list)
    this.mostMembers -= members.length
    const stays = new Set(now ? this.#membersOf(now).map(([key]) => key.toString('hex')) : [])
    const lost = members.map(([key]) => key).filter((key) => !stays.has(key.toString('hex')))
    if (lost.length > 0) this.#hasLost = true
    this.members.deleteAll(lost)
  }

  #remove(id: string): number {
    const placed = this.#placed.get(id)
    if (!placed) return 0
    this.services.store(placed.slot, 0, serviceWord(noService))
    this.#placed.delete(id)
    this.#leave(placed, undefined)
    this.#slots.giveBack(placed.slot, 1)
    return 1
  }

  #membersOf(list: TargetList): readonly (readonly [key: Buffer, value: Uint8Array])[] {
    const id = targetId(list.id)
    return Array.from(rememberedIn(list), ([endpoint, value]) => [
      memberKey(this.family, id, endpoint),
      Uint8Array.of(value),
    ])
  }

  #writeFrontends(plan: SocketPlan, previous: SocketPlan | undefined): number {
    const { added, changed, removed } = plan.frontends.since(previous?.frontends)
    const entries: MapEntry[] = []
    for (const [, [first]] of [...added, ...changed]) {
      if (!first) continue
      const slot = this.#placed.get(first.targets)?.slot
      if (slot === undefined) continue
      entries.push([frontendKey(this.family, first), frontendEntry(slot, first)])
    }
    const before = previous?.nodeAddresses ?? []
    for (const each of newIn(plan.nodeAddresses, before)) {
      entries.push([nodeAddressKey(this.family, each), nodeAddressEntry(each)])
    }
    fill(this.frontends, entries)
    const goneAddresses = newIn(before, plan.nodeAddresses)
    const lost = [...changed, ...removed].some(([, [first]]) => first?.protocol === 'UDP')
    if (lost || goneAddresses.length > 0) this.#hasLost = true
    const gone = [
      ...removed.flatMap(([, [first]]) => (first ? [frontendKey(this.family, first)] : [])),
      ...goneAddresses.map((each) => nodeAddressKey(this.family, each)),
    ]
    this.frontends.deleteAll(gone)
    return entries.length + gone.length
  }
}

/** Old and new entries are in a map together for a moment, so what fits alone may not fit. */
function fill(map: BpfMap, entries: readonly MapEntry[]): void {
  try {
    map.updateAll(entries)
  } catch (error) {
    throw error instanceof KernelError && error.detail === 'E2BIG' ? new TablesFull() : error
  }
}

/** The word that leads to the endpoints of a list. */
export const leadOf = (
  { verdict, draw }: TargetList,
  { first, count, tag }: Pick<Placed, 'first' | 'count' | 'tag'>,
): bigint => serviceWord({ first, count, tag, refuses: verdict === 'refuse', draw })

/** The addresses that the other list has not. */
function newIn(some: readonly NodeAddress[], others: readonly NodeAddress[]) {
  const text = ({ address, hostOnly: isHostOnly }: NodeAddress) => `${address} ${isHostOnly}`
  const known = new Set(others.map(text))
  return some.filter((each) => !known.has(text(each)))
}
