/** What the page is told: plain data that both sides understand. Imports nothing, as a browser reads it too. */

export type Sender = 'client-pod' | 'node' | 'outside'

export interface View {
  /** What the daemon runs in. */
  readonly mode: string
  /** Modes this kernel can run. */
  readonly modes: readonly string[]
  /** A switch of mode or a run of requests is under way. */
  readonly busy: string
  readonly service: ServiceView
  readonly pods: readonly PodView[]
  readonly replicas: number
  readonly sender: Sender
  readonly target: TargetView
  readonly targets: readonly TargetView[]
  readonly path: PathView
  readonly continuous: boolean
  /** Answers by pod, in the order of first answers. */
  readonly answers: readonly AnswerCount[]
  readonly asked: number
  /** The latest requests, newest first. */
  readonly log: readonly LogEntry[]
  readonly rules: readonly RuleLine[]
  /** What made the last difference of the rules, in words. */
  readonly lastChange: string
  /** Lines for a terminal that do what was done last. */
  readonly kubectl: string
  readonly kubeconfig: string
}

export interface ServiceView {
  readonly name: string
  readonly clusterIp: string
  readonly port: number
  readonly nodePort: number
  readonly affinity: boolean
  readonly internalPolicy: Policy
  readonly externalPolicy: Policy
}

export type Policy = 'Cluster' | 'Local'

export interface PodView {
  readonly name: string
  readonly ip: string
  readonly node: string
  readonly state: 'ready' | 'starting' | 'terminating'
}

export interface TargetView {
  readonly name: 'ClusterIP' | 'NodePort'
  readonly address: string
}

export interface HopView {
  readonly where: string
  readonly rule: string
  readonly why: string
}

export interface WayView {
  readonly probability: number
  readonly verdict: string
  readonly end: 'pod' | 'stopped' | 'elsewhere'
  /** Where it ends, if at a pod. */
  readonly pod: string
  /** The backend sees an address of the node. */
  readonly isMasqueraded: boolean
  readonly hops: readonly HopView[]
}

export interface PathView {
  /** Hops that all connections share, then the ways they may go. */
  readonly shared: readonly HopView[]
  readonly ways: readonly WayView[]
  /** Why there is no path to show; empty if there is one. */
  readonly note: string
}

export interface AnswerCount {
  readonly name: string
  readonly count: number
}

export interface LogEntry {
  readonly number: number
  readonly sender: Sender
  readonly target: string
  readonly mode: string
  /** Pod that answered, or what happened instead. */
  readonly answer: string
  readonly isAnswered: boolean
  /** The address the pod saw. */
  readonly source: string
  readonly milliseconds: number
}

export interface RuleLine {
  readonly text: string
  readonly change: 'same' | 'added' | 'removed'
}

/** What the page may ask for. */
export type PageCommand =
  | { readonly do: 'mode'; readonly mode: string }
  | { readonly do: 'replicas'; readonly count: number }
  | { readonly do: 'kill'; readonly pod: string }
  | { readonly do: 'affinity'; readonly on: boolean }
  | { readonly do: 'policy'; readonly side: 'internal' | 'external'; readonly value: Policy }
  | { readonly do: 'sender'; readonly sender: Sender }
  | { readonly do: 'target'; readonly target: TargetView['name'] }
  | { readonly do: 'send'; readonly count: 1 | 100 }
  | { readonly do: 'continuous'; readonly on: boolean }
  | { readonly do: 'clear' }
