import type { Command } from '../kernel/nftables/model.js'
import type { Config } from '../config/config.js'
import type { Difference } from './difference.js'
import type { DesiredState } from '../state/desired-state.js'
import type { IpFamily } from '../state/ip.js'
import type { Protocol } from '../state/names.js'
import type { PersistentMap } from '../state/persistent-map.js'

/** One thing a mode needs, and whether this node has it. `kube-proxy check` prints the findings. */
export interface Finding {
  /** The thing needed, such as `kernel module ip_vs`. */
  readonly what: string
  readonly ok: boolean
  /** The mode does not run at all without it; otherwise it runs with less. */
  readonly required: boolean
  /** The version or the error that was seen. */
  readonly seen: string
  /** Advice to the operator; empty when ok. */
  readonly fix: string
  /** The reason says nothing of the node: a program was killed, or took too long. */
  readonly mayPass?: boolean
}

/** A way to program the node, before it is chosen. The registry names it. */
export interface ModeDefinition {
  /** One line for `--help`, `check` and the README. */
  readonly summary: string
  /**
   * Looks at what the kernel can do, without a lasting change; `config` is undefined if nobody has
   * configured this node yet.
   */
  probe(context: ProbeContext, config?: Config): Promise<readonly Finding[]>
  /** Reads how often to sync. */
  syncPeriods(config: Config): SyncPeriods
  /** A planner that needs no kernel and no rights; `kube-proxy render` uses it. */
  planner(config: Config): PlanReader
  /** Loads modules and sets sysctls. The daemon does not need the rights for this later (L14). */
  prepare?(config: Config, context: ProbeContext): Promise<void>
  /** A mode ready to apply plans. Throws KernelError when a required finding fails. */
  create(config: Config, families: readonly IpFamily[], context: ModeContext): Promise<Mode>
  /** Replaces the settings `auto` by the values that the proxy on this node has chosen. */
  settle?(config: Config, family: IpFamily): Promise<Config>
  /** Compares what the kernel holds with what it should hold for a state. Changes nothing. */
  differences(state: DesiredState, config: Config): Promise<readonly Difference[]>
  /**
   * Removes everything this mode ever installs, from any earlier run; `not found` is fine. What
   * `config` says to leave alone stays. With `sparesUsed` so does what a process of this mode that
   * drains needs for its open connections; it removes that itself.
   */
  cleanup(
    context: ModeContext,
    config?: Config,
    options?: { readonly sparesUsed?: boolean },
  ): Promise<void>
}

export interface SyncPeriods {
  /** Least time between two syncs; `measured`: it follows from their cost. */
  readonly minMs: number | 'measured'
  /** Retry after a failure; in ipvs mode also the longest time between two syncs (R04). */
  readonly syncMs: number
}

/** A plan belongs to one family: that of the state it was made from. */
export interface FamilyPlan {
  readonly family: IpFamily
}

/** The pure half of a mode. */
export interface Planner<Plan extends FamilyPlan = FamilyPlan> {
  /** Pure. Unchanged services must keep their part of the plan by reference. */
  plan(state: DesiredState): Plan
  /** The whole plan as text for people. */
  render(plan: Plan): string
  /** The lines of `render` with the commands of each, if the mode knows them. */
  lines?(plan: Plan): readonly PlanLine[]
  /** What `apply` would send to get from `previous` (nothing, if undefined) to `plan`. */
  renderChanges(plan: Plan, previous: Plan | undefined): string
}

/** A planner that can also take a finished plan apart, for callers that look at a few Services. */
export interface PlanReader<Plan extends FamilyPlan = FamilyPlan> extends Planner<Plan> {
  /** By `DesiredService.key`. A part that is the same in two plans has the same reference. */
  parts(plan: Plan): PersistentMap<object>
  /** The plan as if there were only these service ports. Nothing is planned anew. */
  only(plan: Plan, keys: readonly string[]): Plan
}

/** One line of a plan. */
export interface PlanLine {
  readonly text: string
  /** In nftables mode: what the line does. */
  readonly commands?: readonly Command[]
}

/** The descriptors for sockets that listen. */
export interface ListenerDescriptors {
  /** Takes one; false when none is left. */
  tryListen(): boolean
  stopListening(): void
}

export interface Mode<Plan extends FamilyPlan = FamilyPlan> extends Planner<Plan> {
  /**
   * The mode deletes stale UDP flows itself, because they lead to sockets that only it knows. `idle`
   * resolves once no deletion is running. `again` is called each time when the rules of other modes
   * are gone.
   */
  readonly staleFlows?: { idle(): Promise<void>; again(isLast: boolean): void }
  /** A mode that may open as many files as the process shares them with other listeners. */
  readonly descriptors?: ListenerDescriptors
  /** Clients reach sockets of the mode without a rule in the kernel. */
  readonly hasNoRules?: boolean
  /**
   * Makes the kernel match the plan. The mode keeps what it applied last and writes the difference;
   * it writes everything when the kernel's content is not known: at the start, after a failure and
   * after `forget`. May be called twice with the same plan. Adds before it removes. Throws
   * KernelError when nothing or only a part could be applied.
   */
  apply(plan: Plan): Promise<Applied>
  /**
   * Resolves when a write disturbs nobody who reads the kernel. A sync waits for it before it takes
   * the state. Without it a mode may write at any time.
   */
  whenQuiet?(): Promise<void>
  /** The kernel may hold something else now. An apply that runs is not trusted either. */
  forget(): void
  /**
   * Takes new values of live keys, which need no restart. No connection is lost. Returns whether
   * everything must be written anew: the daemon then calls `forget` and syncs.
   */
  reconfigure(config: Config): boolean
  /**
   * Watches for foreign changes until the signal, and calls `context.resync` when the kernel no
   * longer holds what was applied.
   */
  run(signal: AbortSignal): Promise<void>
  /** Reads from the kernel what only the kernel counts. Called before metrics are shown. */
  countTraffic?(): Promise<void>
  /** Drains and closes what cannot outlive the process. Rules stay (L17). */
  close(): Promise<void>
}

export interface Applied {
  /** Whether the plan was written as a whole rather than as a difference. */
  readonly full: boolean
  /** Bytes or messages given to the kernel. */
  readonly bytes: number
  /** Kernel objects (rules, elements, servers) written or removed. */
  readonly objects: number
  /** Service ports that could not be programmed while the others were; retried at the next sync. */
  readonly failed: readonly ServiceFailure[]
}

export interface ServiceFailure {
  /** `DesiredService.key` */
  readonly key: string
  readonly reason: string
  /** The reason of the Event on the Service, such as `PortConflict`. */
  readonly event?: string
}

interface ProbeContext {
  readonly log: Log
}

export interface ModeContext extends ProbeContext {
  /**
   * Asks the daemon to write everything anew. `byOthers`: another program changed what was written.
   * `reason` is logged.
   */
  resync(reason: string, options: { readonly byOthers: boolean }): void
  /** Asks the daemon to end in good order. */
  stop?(reason: string): void
  /** Named numbers for /metrics and `top`, see observe/. */
  readonly meter: Meter
  /**
   * Gets the connections that the mode itself has carried; `leftOut` counts those not in the list.
   * Undefined if nobody listens.
   */
  readonly carried?:
    | ((connections: readonly CarriedConnection[], leftOut: number) => void)
    | undefined
  /** Gets the calls that the mode has refused at the socket; `leftOut` as above. */
  readonly refused?: ((calls: readonly RefusedCall[], leftOut: number) => void) | undefined
  /**
   * Gets the connections and UDP clients that the mode has translated at their socket; `leftOut` as
   * above. Undefined if nobody listens.
   */
  readonly translated?: ((flows: readonly SocketFlow[], leftOut: number) => void) | undefined
}

export type SocketFlow = SocketConnection | SocketClient

/** What became of a TCP connection that was translated at its socket. Places are `ip:port`. */
export interface SocketConnection {
  /** `failed`: no endpoint took it, so it was never opened. */
  readonly event: 'opened' | 'ended' | 'failed'
  /** `namespace/name:port` */
  readonly service: string
  readonly client: string
  /** What the client asked for. */
  readonly address: string
  readonly endpoint: string
  /** From the opening to the event. The bytes are those of the same time. */
  readonly durationMs: number
  readonly bytesToEndpoint: number
  readonly bytesToClient: number
}

/** A UDP socket that sends to a Service from now on. Neither bytes nor an end are reported. */
export interface SocketClient extends Pick<SocketConnection, 'service' | 'address' | 'endpoint'> {
  readonly event: 'client'
  /** Empty if the socket is bound to no address. */
  readonly client: string
  /** The number of the process that sends, as the node knows it. */
  readonly process: number
}

/** A call of connect() or sendmsg() to a Service without endpoints. The socket has no address yet. */
export interface RefusedCall {
  /** `namespace/name:port` */
  readonly service: string
  readonly protocol: Protocol
  /** `ip:port` that the call asked for. */
  readonly address: string
  /** The number of the process that called, as the node knows it. */
  readonly process: number
}

/** A connection, or UDP client, that has ended. The endpoint is empty if none could be reached. */
export interface CarriedConnection extends Omit<SocketConnection, 'event' | 'address'> {
  readonly protocol: 'TCP' | 'UDP'
  /** How it ended: `ok`, `no endpoint`, `reset`, or the code of the error. */
  readonly end: string
}

/** The part of a pino logger the rooms below the daemon use. */
export interface Log {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
}

/**
 * Where modes put numbers; the daemon connects it to Prometheus metrics. Names and labels are
 * those of observe/metrics.ts, without `kubeproxy_`; others are lost.
 */
export interface Meter {
  count(name: string, labels: Readonly<Record<string, string>>, by?: number): void
  gauge(name: string, labels: Readonly<Record<string, string>>, value: number): void
  observe(name: string, labels: Readonly<Record<string, string>>, value: number): void
  /** Drops all series with these labels, for a service port that left. */
  forget(labels: Readonly<Record<string, string>>): void
}
