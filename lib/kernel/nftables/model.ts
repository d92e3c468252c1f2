/**
 * A small model of nftables: tables, chains, rules as expressions, sets, maps, elements, and the
 * commands that change them. The model holds no text: one writer turns it into `nft` input, another
 * into netlink messages. Both refuse names that they cannot write (see identifiers.ts).
 */

export type NftFamily = 'ip' | 'ip6'

export interface Table {
  readonly family: NftFamily
  readonly name: string
  readonly comment: string
}

/**
 * The type of one part of a key. `address` is ipv4_addr or ipv6_addr, as the table's family says;
 * `number` is a number that a rule has drawn.
 */
export type KeyType = 'address' | 'inet_proto' | 'inet_service' | 'number'

export type L4Protocol = 'tcp' | 'udp' | 'sctp'

export interface NftSet {
  readonly name: string
  readonly key: readonly KeyType[]
  /** Keys alone, or a map from keys to verdicts or to addresses with ports. */
  readonly holds: 'keys' | 'verdicts' | 'targets'
  /** For a map of targets: the protocol of their ports. */
  readonly protocol?: L4Protocol
  /** Rules add the elements. An element is dropped after this many seconds without an update. */
  readonly timeoutSeconds?: number
  readonly comment?: string
}

export interface BaseHook {
  readonly type: 'filter' | 'nat'
  readonly hook: 'prerouting' | 'input' | 'forward' | 'output' | 'postrouting'
  readonly priority: number
}

export interface Chain {
  readonly name: string
  readonly rules: readonly Rule[]
  /** The hook that calls the chain; undefined for a chain that others jump to. */
  readonly base?: BaseHook
  readonly comment?: string
}

/** Statements from left to right: the first that does not match ends the rule. */
export interface Rule {
  readonly statements: readonly Statement[]
  readonly comment?: string
}

export type Verdict =
  | { readonly to: 'drop' }
  | { readonly to: 'return' }
  | { readonly to: 'jump' | 'goto'; readonly chain: string }

/** One part of a packet that is looked up in sets and maps. */
export type Field = 'saddr' | 'daddr' | 'l4proto' | 'dport'

export type Statement = Test | Action

/** A statement that decides whether the rule goes on. */
export type Test =
  /** `saddr != { … }`; CIDRs without overlap, see {@link disjoint}. */
  | {
      readonly kind: 'address'
      readonly field: 'saddr' | 'daddr'
      readonly not: boolean
      readonly cidrs: readonly Prefix[]
    }
  | { readonly kind: 'member'; readonly fields: readonly Field[]; readonly set: string }
  /** The address belongs to this host. */
  | { readonly kind: 'local'; readonly field: 'saddr' | 'daddr' }
  /**
   * The name of the interface by which a packet came, or with `prefix` the beginning of that name.
   */
  | {
      readonly kind: 'interface'
      readonly not: boolean
      readonly name: string
      readonly prefix: boolean
    }
  | { readonly kind: 'protocol'; readonly protocol: L4Protocol }
  | { readonly kind: 'connection'; readonly is: 'new' | 'dnat' }
  /** Matches when any of the bits is set. */
  | { readonly kind: 'mark-test'; readonly bits: number }
  | { readonly kind: 'mark-change'; readonly by: 'or' | 'xor'; readonly bits: number }

/** A statement that does something with a packet that matches. */
export type Action =
  | { readonly kind: 'verdict-map'; readonly fields: readonly Field[]; readonly map: string }
  | {
      readonly kind: 'random-verdict'
      readonly verdicts: readonly Verdict[]
      readonly by?: Draw
    }
  /** Sends to one of the targets. The rule must match a protocol before. */
  | { readonly kind: 'dnat'; readonly targets: readonly DnatTarget[]; readonly by?: Draw }
  /**
   * Sends to the map's entry for destination, port and a random number below `choices`. Packets of
   * another protocol, or without an entry, do not match.
   */
  | {
      readonly kind: 'dnat-by-map'
      readonly protocol: L4Protocol
      readonly choices: number
      readonly map: string
    }
  /** Sends to the map's entry for the hash of the source address, a number below `places`. */
  | {
      readonly kind: 'dnat-by-source'
      readonly protocol: L4Protocol
      readonly places: number
      readonly map: string
    }
  | { readonly kind: 'masquerade' }
  | { readonly kind: 'remember'; readonly set: string; readonly field: 'saddr' }
  | { readonly kind: 'verdict'; readonly verdict: Verdict }
  | { readonly kind: 'reject' }
  /**
   * Sends the head of the packet to the listener of this group of nfnetlink_log, if there is one.
   */
  | { readonly kind: 'log'; readonly group: number; readonly prefix?: string }

/** How one of several is drawn: by chance (if absent), in turn, or by a hash of the source address. */
export type Draw = 'chance' | 'turn' | 'source'

/** Part of the address space; structurally a Cidr. */
export interface Prefix {
  readonly text: string
  readonly network: bigint
  readonly prefix: number
}

export interface DnatTarget {
  readonly ip: string
  readonly port: number
}

export interface Element {
  readonly set: NftSet
  /** One value per part of the set's key. */
  readonly key: readonly (string | number)[]
  /** In maps of verdicts only. */
  readonly verdict?: Verdict
  /** In maps of targets only. */
  readonly target?: DnatTarget
  /** In sets with a timeout: the time left, if it is less than the timeout. */
  readonly expiresMs?: number
  readonly comment?: string
}

export type Command = ObjectCommand | ElementCommand

export type ObjectCommand =
  /**
   * Adding an existing object is no error (unless it differs); deleting a missing one is an error.
   */
  | { readonly do: 'add-table' | 'delete-table' }
  | { readonly do: 'add-chain' | 'flush-chain' | 'delete-chain'; readonly chain: Chain }
  | { readonly do: 'add-rule'; readonly chain: string; readonly rule: Rule }
  | { readonly do: 'add-set' | 'flush-set' | 'delete-set'; readonly set: NftSet }

export interface ElementCommand {
  readonly do: 'add-element' | 'delete-element'
  readonly element: Element
}

/** Commands that take effect together or not at all. */
export interface Transaction {
  readonly table: Table
  readonly commands: readonly Command[]
}

/**
 * The commands in their order. Those that stand side by side and change elements of one set are
 * one.
 */
export function runsOf(
  commands: readonly Command[],
  most = Infinity,
): readonly (ObjectCommand | readonly ElementCommand[])[] {
  const runs: (ObjectCommand | ElementCommand[])[] = []
  for (const command of commands) {
    const last = runs.at(-1)
    if (!('element' in command)) runs.push(command)
    else if (last && !('do' in last) && last.length < most && isLike(last[0], command)) {
      last.push(command)
    } else runs.push([command])
  }
  return runs
}

const isLike = (one: ElementCommand | undefined, other: ElementCommand) =>
  one?.do === other.do && one.element.set.name === other.element.set.name

/** Which table a writer, a listing or an event is about. */
export type TableRef = Pick<Table, 'family' | 'name'>

/**
 * The prefixes without those that others contain, sorted by network. An anonymous set accepts no
 * overlap.
 */
export function disjoint<P extends Prefix>(prefixes: readonly P[], bits: number): readonly P[] {
  const sorted = [...prefixes].sort((a, b) =>
    a.network < b.network ? -1 : a.network > b.network ? 1 : a.prefix - b.prefix,
  )
  const kept: P[] = []
  let end = -1n
  for (const prefix of sorted) {
    if (prefix.network <= end) continue
    kept.push(prefix)
    end = prefix.network + (1n << BigInt(bits - prefix.prefix)) - 1n
  }
  return kept
}
