/**
 * The whole configuration as values, from a KubeProxyConfiguration file (v1alpha1), the flags and the
 * defaults. The paths are those of the file, so `iptables.syncPeriod` means the same in the file,
 * here, in docs/configuration.md and on /configz.
 */

import type { Keys } from './keys.js'

/**
 * The requested mode. Empty means iptables, as upstream; `auto` means the best mode for this node.
 */
export type ProxyMode = Config['mode']

/** A mode that a node can run. */
export type ModeName = Exclude<ProxyMode, '' | 'auto'>

/** The group of nfnetlink_log to which rules log the packets that they refuse, with `--flows`. */
export const refusalGroup = 10_249

/**
 * The log prefixes of packets that a policy drops. Packets that rules refuse have an empty prefix.
 */
export const dropReasons = {
  sourceRange: 'not in loadBalancerSourceRanges',
  localPolicy: 'no local endpoint',
} as const

/** Whether this process itself carries the bytes of connections. */
export function isProxyMode(mode: ProxyMode): boolean {
  return mode === 'userspace' || mode === 'winuserspace'
}

/**
 * Whether the numbers of this process include every connection: those that it carries, and with
 * `--flows` those that the kernel carries. In ipvs mode the kernel's own numbers say more.
 */
export function countsConnections(mode: ProxyMode, countsFlows: boolean): boolean {
  return isProxyMode(mode) || (countsFlows && mode !== 'ipvs')
}

/** Durations are milliseconds here, and Go durations (`30s`) in files and flags. */
export type Config = Values<Keys>

/** The values of keys by path: a path with dots leads through a section for each of its names. */
type Values<Table> = {
  readonly [Path in keyof Table & string as FirstName<Path>]: Path extends `${infer Name}.${string}`
    ? Values<Section<Table, Name>>
    : Table[Path] extends { readonly initial: infer Value }
      ? Value
      : never
}

type FirstName<Path extends string> = Path extends `${infer Name}.${string}` ? Name : Path

type Section<Table, Name extends string> = {
  [Path in keyof Table as Path extends `${Name}.${infer Rest}` ? Rest : never]: Table[Path]
}
