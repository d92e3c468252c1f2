import type { Kind, SyncPace } from './kinds.js'
import {
  boolKind,
  choiceKind,
  durationKind,
  floatKind,
  intKind,
  listKind,
  paceKind,
  pathKind,
  stringKind,
} from './kinds.js'

/** Sections of `--help` and of docs/configuration.md, in their order. */
export const groups = [
  'Cluster or manifests',
  'Mode',
  'This node',
  'Local traffic',
  'iptables',
  'nftables',
  'ebpf',
  'ipvs',
  'userspace',
  'Connection tracking',
  'Health and metrics',
  'Logging',
  'Process',
  'Windows',
] as const

type Group = (typeof groups)[number]

/** One value of the configuration, for the parser, the help, the documents and the defaults. */
export interface Key<V> extends Described {
  readonly kind: Kind<V>
  readonly initial: V
  readonly group: Group
}

interface Described {
  /** A sentence without a full stop at its end. */
  readonly doc: string
  /** Names of flags, without the dashes. The first one is shown; the others mean the same. */
  readonly flags: readonly string[]
  /** In a file, an empty string or 0 means the default, as Go's zero values (section 11). */
  readonly zeroIsDefault: boolean
  /** The flag counts even with --config. */
  readonly overFile: boolean
  /** Which program has the key: kube-proxy 1.36, kube-proxy only up to 1.25, or only this one. */
  readonly known: '1.36' | '1.25' | 'here'
  /** Why the key has no effect here; undefined when it has one. */
  readonly noEffect: string | undefined
  /** A new value in the file takes effect without a restart. */
  readonly isLive: boolean
}

interface Extras extends Partial<Omit<Described, 'doc' | 'isLive'>> {
  readonly live?: true
  /** For a choice: advice about values that only another program has. */
  readonly advice?: Readonly<Record<string, string>>
}

/**
 * Functions that make keys of one group, so that the tables are short. `common` holds for each key
 * that does not say otherwise.
 */
export function keysOf(group: Group, common: Extras = {}) {
  const key = <V>(kind: Kind<V>, initial: V, doc: string, own: Extras): Key<V> => {
    const { flags = [], zeroIsDefault = false, known = '1.36', ...extras } = { ...common, ...own }
    const { noEffect, live = false } = extras
    // Flags that kube-proxy does not have always count.
    const { overFile = known === 'here' } = extras
    // A new value without effect needs no restart.
    const isLive = live || noEffect !== undefined
    return { kind, initial, group, doc, flags, zeroIsDefault, overFile, known, noEffect, isLive }
  }
  return {
    key,
    string: (initial: string, doc: string, extras: Extras) => key(stringKind, initial, doc, extras),
    path: (initial: string, doc: string, extras: Extras) => key(pathKind, initial, doc, extras),
    bool: (initial: boolean, doc: string, extras: Extras) => key(boolKind, initial, doc, extras),
    int: (initial: number, doc: string, extras: Extras) => key(intKind, initial, doc, extras),
    float: (initial: number, doc: string, extras: Extras) => key(floatKind, initial, doc, extras),
    duration: (initial: number, doc: string, extras: Extras) =>
      key(durationKind, initial, doc, extras),
    pace: (doc: string, extras: Extras) => key<SyncPace>(paceKind, 'measured', doc, extras),
    list: (doc: string, extras: Extras) => key<readonly string[]>(listKind, [], doc, extras),
    choice: <V extends string>(choices: readonly V[], initial: V, doc: string, extras: Extras) =>
      key<V>(choiceKind(choices, extras.advice), initial, doc, extras),
  }
}
