import type { Table } from './batch.js'
import type { Run } from './command.js'
import type { Backend, Family, Version } from './flavour.js'
import type { Rule } from './rule.js'

export interface OpenOptions {
  readonly family: Family
  /**
   * With `auto`, the default, the backend that holds the node's rules, else the system's default,
   * else one that this kernel has.
   */
  readonly backend?: Backend | 'auto' | undefined
  /** How long a program waits for the xtables lock; 5 s by default. */
  readonly waitSeconds?: number
  /**
   * Called after `waitSeconds`; true means to wait as long again. Without it the call fails then.
   */
  readonly onLocked?: (locked: Locked) => boolean | Promise<boolean>
  readonly run?: Run | undefined
  /**
   * Lists the chains of nf_tables as `table chain`, where the caller can without a program. It must
   * look into the network namespace of `run`.
   */
  readonly chainNames?: (family: Family) => Promise<ReadonlySet<string> | undefined>
  /**
   * Rules of the caller in chains of others. Where such a chain cannot be listed, because nft has
   * written a rule into it that iptables does not know, reading it finds these rules.
   */
  readonly sought?: readonly PlacedRule[]
}

export interface PlacedRule {
  readonly table: Table
  readonly chain: string
  readonly rule: Rule
}

/** Another program holds the xtables lock. */
export interface Locked {
  readonly action: string
  readonly waitedMs: number
  /** Such as `iptables (pid 4711)`; undefined if it cannot be seen. */
  readonly holder: string | undefined
}

export interface RestoreOptions {
  /** Parses and checks, changes nothing. */
  readonly test?: boolean
  /** Leaves tables and chains alone that the batch does not mention; true by default. */
  readonly noFlush?: boolean
}

export interface Capabilities {
  readonly backend: Backend
  readonly version: Version
  /**
   * Whether iptables-restore has `-w` (since 1.6.2). Otherwise this library takes the locks for it.
   */
  readonly waitsForLock: boolean
  /** Whether MASQUERADE has `--random-fully` (since 1.6.2). */
  readonly randomFully: boolean
  /**
   * Whether the mask of an address may begin with a zero byte, such as `0.0.0.5/0.0.0.63`.
   * iptables-nft before 1.8.8 makes a rule of it that the kernel refuses.
   */
  readonly sparseMasks: boolean
}
