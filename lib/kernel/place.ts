/**
 * A place in the kernel. It joins differences, the hops of `explain` and counters of the same
 * place. People read its text.
 */
export interface Place {
  readonly kind: PlaceKind
  /** The table of an iptables chain. */
  readonly table?: string
  /** Empty for a kind that has only one place. */
  readonly name: string
}

export type PlaceKind =
  /** A whole nftables table. */
  | 'table'
  | 'chain'
  | 'set'
  | 'map'
  | 'ipset'
  | 'virtual server'
  /** A system call that programs of eBPF see. */
  | 'call'
  | 'device'
  /** An address of this machine. */
  | 'address'
  /** The ports that the proxy itself listens on. */
  | 'listeners'

/** A rule, element, server or listener at its place, in the words of the plan it belongs to. */
export interface Item {
  readonly place: Place
  readonly text: string
}

export function chainIn(table: string, name: string): Place {
  return { kind: 'chain', table, name }
}

/** A key that is the same for the same place. People never see it. */
export function placeId({ kind, table = '', name }: Place): string {
  return [kind, table, name].join('\u0000')
}

export function itemId({ place, text }: Item): string {
  return [placeId(place), text].join('\u0000')
}

export function isSamePlace(a: Place, b: Place | undefined): boolean {
  return b !== undefined && a.kind === b.kind && a.table === b.table && a.name === b.name
}

/** For people, such as `nat KUBE-SERVICES` or `map service-ips`. */
export function placeText({ kind, table, name }: Place): string {
  if (kind === 'address') {
    return isAnyAddress(name) ? 'any address of this machine' : `address ${name} of this machine`
  }
  if (kind === 'listeners') return 'listeners'
  if (kind === 'call') return `${name}()`
  return `${kind === 'chain' && table !== undefined ? table : kind} ${name}`
}

export function isAnyAddress(ip: string): boolean {
  return ip === '0.0.0.0' || ip === '::'
}
