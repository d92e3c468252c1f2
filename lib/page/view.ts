import type { ExerciseView, LessonView } from './learning-view.js'

/** The data that the server sends to the page. It imports only types, because the browser loads it. */

/** `backend` is a pod of the Service itself, which may reach itself. */
export type Sender = 'client-pod' | 'node' | 'outside' | 'backend'

/**
 * Everything the page shows. The dashboard of a live daemon leaves `lessons`, `exercises`, `objects` and
 * `timeline` empty and sets `isReadOnly`, which hides the controls.
 */
export interface View {
  readonly isReadOnly: boolean
  /** The line under the title: where the source runs, and with which rights. */
  readonly where: string
  /** What cannot be shown where this runs, or what stops connections there; a sentence each. */
  readonly limits: readonly string[]
  readonly mode: string
  /** Modes that can run here. */
  readonly modes: readonly string[]
  /** In userspace mode: the proxy listens at the addresses of Services, without rules. */
  readonly listensItself: boolean
  /** The scheduler of ipvs mode. */
  readonly scheduler: string
  /** What is under way, such as a switch of the mode; empty when nothing is. */
  readonly busy: string
  /** What the kernel does not have yet, in words; empty when it has all. */
  readonly pending: string
  /** IP families of the Service, if there is a choice; then the one that is shown. */
  readonly families: readonly IpFamily[]
  readonly family: IpFamily | ''
  /** All Services, by `namespace/name`. */
  readonly services: readonly ServiceLine[]
  /** The Service that all fields below are about. */
  readonly service: ServiceView
  readonly pods: readonly PodView[]
  /** What was done to pods by hand, as the command `marks` does it again to other pods. */
  readonly marks: readonly string[]
  /** Names for this node and for all others. A pod's `node` is one of the two. */
  readonly nodeNames?: readonly [here: string, elsewhere: string]
  readonly replicas: number
  /** The most replicas that have room. */
  readonly mostReplicas: number
  readonly sender: Sender
  readonly senders: readonly Sender[]
  readonly target: TargetView
  readonly targets: readonly TargetView[]
  readonly path: PathView
  /** The same connection in two modes; empty while none are compared. */
  readonly comparison: readonly SideView[]
  readonly counters: CountersView
  readonly continuous: boolean
  /** Answers by pod, in the order of first answers. */
  readonly answers: readonly AnswerCount[]
  readonly asked: number
  /** The latest requests, newest first. */
  readonly log: readonly LogEntry[]
  /** The latest connections of a live proxy that fit the filter, newest first. */
  readonly flows: readonly FlowView[]
  /** The filter of `flows`, and its limits; null if no live proxy is shown. */
  readonly stream: StreamView | null
  readonly rules: RulesView
  readonly timeline: TimelineView | null
  readonly lessons: readonly LessonView[]
  readonly exercises: readonly ExerciseView[]
  readonly objects: readonly ObjectLine[]
  /** Lines for a terminal that do what was done last. */
  readonly kubectl: string
  readonly kubeconfig: string
}

export type IpFamily = 'IPv4' | 'IPv6'

export interface ServiceLine {
  readonly key: string
  readonly type: string
  readonly clusterIp: string
  readonly ports: string
  /** What the kernel lacks of it, and why; absent when it has all. */
  readonly note?: string
}

/** What a reader is sent: the parts of the view that differ from those it has. */
export interface Frame extends Partial<Omit<View, 'services' | 'flows'>> {
  readonly services?: Changes<ServiceLine>
  readonly flows?: Changes<FlowView>
}

/** Lines that are new or have changed, and the keys of those that are gone. */
export interface Changes<Line> {
  readonly set: readonly Line[]
  readonly gone: readonly string[]
}

/** A line of what `kube-proxy flows` prints. */
export interface FlowView {
  /** The number of the line; newer ones are higher. */
  readonly key: string
  /** RFC 3339, in UTC. */
  readonly time: string
  /** `ip:port`, and the pod that has this address; empty if unknown. */
  readonly client: string
  readonly clientPod: string
  /** What to filter by for this client: its pod, or its address. */
  readonly from: string
  /** `namespace/name:port` */
  readonly service: string
  readonly protocol: string
  /** Empty where there is none. */
  readonly endpoint: string
  readonly endpointPod: string
  readonly verdict: FlowVerdict
  readonly details: string
}

type FlowVerdict = 'forwarded' | 'refused' | 'dropped' | 'no-endpoints'

/** Which connections are shown; empty fields let all through. */
export interface FlowChoice {
  readonly service: string
  readonly from: string
  readonly verdict: FlowVerdict | ''
}

export interface StreamView extends FlowChoice {
  /** Why there is no stream, and what to do; empty when there is one. */
  readonly note: string
  /** Lines that the proxy did not keep, because there were too many at a time. */
  readonly leftOut: number
}

export type ServiceType = 'ClusterIP' | 'NodePort' | 'LoadBalancer'

export interface ServiceView {
  /** `namespace/name` */
  readonly name: string
  readonly type: string
  readonly protocol: 'TCP' | 'UDP' | 'SCTP'
  readonly clusterIp: string
  readonly port: number
  /** 0 when it has none. */
  readonly nodePort: number
  /** Empty when it has none. */
  readonly loadBalancerIp: string
  readonly affinity: boolean
  readonly internalPolicy: Policy
  readonly externalPolicy: Policy
  readonly sourceRanges: readonly string[]
}

export type Policy = 'Cluster' | 'Local'

export interface PodView {
  readonly name: string
  readonly ip: string
  readonly node: string
  /** `failing`: it fails its health check. `stopped`: the pod exists, but its process does not run. */
  readonly state: 'ready' | 'starting' | 'not ready' | 'failing' | 'stopped' | 'terminating'
  /** The kernel does not know yet that the pod came or left. */
  readonly isPending?: boolean
}

export interface TargetView {
  readonly name: 'ClusterIP' | 'NodePort' | 'LoadBalancer'
  readonly address: string
}

export interface HopView {
  readonly where: string
  readonly rule: string
  readonly why: string
  /** The key of its packets in `CountersView.rules`; empty if it is not an iptables rule. */
  readonly counter: string
}

export interface WayView {
  readonly probability: number
  readonly verdict: string
  readonly end: 'pod' | 'stopped' | 'elsewhere'
  /** The pod at its end; empty if there is none. */
  readonly pod: string
  /** The backend sees an address of the node. */
  readonly isMasqueraded: boolean
  readonly hops: readonly HopView[]
}

/** A connection in one mode, beside the same in another. */
export interface SideView {
  readonly mode: string
  /** Whether its rules are in the kernel. If not, the path is through the rules it would write. */
  readonly isRunning: boolean
  readonly path: PathView
  /** Every mode has the same lines. */
  readonly costs: readonly CostView[]
}

export interface CostView {
  readonly name: string
  readonly value: string
}

export interface PathView {
  /** Hops that all connections share, then the ways they may go. */
  readonly shared: readonly HopView[]
  readonly ways: readonly WayView[]
  /** Why there is no path to show; empty if there is one. */
  readonly note: string
}

/** The counters of the kernel, or of the proxy itself. */
export interface CountersView {
  /** By `HopView.counter`: packets that matched the rule. */
  readonly rules: Readonly<Record<string, number>>
  /** By endpoint `ip:port`: connections. */
  readonly endpoints: Readonly<Record<string, number>>
  /** Where the numbers come from, and what they do not count. */
  readonly note: string
}

export const noCounters: CountersView = { rules: {}, endpoints: {}, note: '' }

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
  /** Where it was sent without an answer, pods in turn; null where nothing tells. */
  readonly sentTo: readonly string[] | null
  /** The address the pod saw. */
  readonly source: string
  /** Whether that is the address of the sender. */
  readonly isSourceKept: boolean
  /** Null where no time is measured. */
  readonly milliseconds: number | null
}

export interface RulesView {
  /** The mode of these rules, which may differ from the mode that runs. */
  readonly mode: string
  /**
   * Modes whose rules can be shown. Making rules needs no kernel, so these may be more than can
   * run.
   */
  readonly modes: readonly string[]
  readonly lines: readonly RuleLine[]
  /** What caused the last difference, in words. */
  readonly lastChange: string
}

export interface RuleLine {
  readonly text: string
  readonly change: 'same' | 'added' | 'removed'
  readonly words: string
  readonly object: string
}

/** The steps from a change in the cluster to the first connection that uses it. */
export interface TimelineView {
  readonly title: string
  readonly steps: readonly TimelineStep[]
  /** What is missing, and why; empty when all was measured. */
  readonly note: string
}

export interface TimelineStep {
  readonly name: string
  readonly what: string
  /** Milliseconds since the first step. */
  readonly atMs: number
}

export interface ObjectLine {
  readonly apiVersion: string
  readonly kind: string
  readonly namespace: string
  readonly name: string
}
