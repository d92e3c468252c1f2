import type { ConfigPath, ValueAt } from './config.js'
import type { Kind } from './kinds.js'
import {
  boolKind,
  choiceKind,
  durationKind,
  floatKind,
  intKind,
  listKind,
  stringKind,
} from './kinds.js'

/** Chapters of `--help` and of docs/configuration.md, in the order in which people look. */
export const groups = [
  'Cluster or manifests',
  'Mode',
  'This node',
  'Local traffic',
  'iptables',
  'nftables',
  'ipvs',
  'userspace',
  'Connection tracking',
  'Health and metrics',
  'Logging',
  'Process',
  'Windows',
] as const

export type Group = (typeof groups)[number]

/** One value of the configuration: everything help, documents, parser and defaults know of it. */
export interface Key<V> extends Described {
  readonly kind: Kind<V>
  readonly initial: V
  readonly group: Group
}

export interface Described {
  /** A sentence without its full stop. */
  readonly doc: string
  /** Without the dashes; the first one is shown, the others are other names for it. */
  readonly flags: readonly string[]
  /** In a file, an empty string or 0 means the default, as Go's zero values do (section 11). */
  readonly zeroIsDefault: boolean
  /** The flag counts even with --config. */
  readonly overFile: boolean
  /** Who knows the key: kube-proxy 1.36, only kube-proxy up to 1.25, or nobody but us. */
  readonly known: '1.36' | '1.25' | 'here'
  /** Why setting it changes nothing here; undefined when it does. */
  readonly idle: string | undefined
}

export interface Extras {
  readonly flags?: readonly string[]
  readonly zeroIsDefault?: boolean
  readonly overFile?: boolean
  readonly known?: Described['known']
  readonly idle?: string
}

/** Constructors of keys in one group, so that the tables read as tables. */
export function keysOf(group: Group) {
  const key = <V>(kind: Kind<V>, initial: V, doc: string, extras: Extras = {}): Key<V> => ({
    kind,
    initial,
    group,
    doc,
    flags: extras.flags ?? [],
    zeroIsDefault: extras.zeroIsDefault ?? false,
    // Flags nobody but us knows are bound by no habit: they always count.
    overFile: extras.overFile ?? extras.known === 'here',
    known: extras.known ?? '1.36',
    idle: extras.idle,
  })
  return {
    key,
    string: (initial: string, doc: string, extras?: Extras) =>
      key(stringKind, initial, doc, extras),
    bool: (initial: boolean, doc: string, extras?: Extras) => key(boolKind, initial, doc, extras),
    int: (initial: number, doc: string, extras?: Extras) => key(intKind, initial, doc, extras),
    float: (initial: number, doc: string, extras?: Extras) => key(floatKind, initial, doc, extras),
    duration: (initial: number, doc: string, extras?: Extras) =>
      key(durationKind, initial, doc, extras),
    list: (doc: string, extras?: Extras) => key<readonly string[]>(listKind, [], doc, extras),
    choice: <V extends string>(choices: readonly V[], initial: V, doc: string, extras?: Extras) =>
      key<V>(choiceKind(choices), initial, doc, extras),
  }
}

/** Exactly one key for every value of `Config`, of the right type: the compiler checks it. */
export type KeyTable = { readonly [P in ConfigPath]: Key<ValueAt<P>> }
