import { answersAt, understand } from '../../inspect/explain/question.js'
import { explainPlan } from '../../inspect/explain/explain.js'
import { addressOf, hostPort, type IpFamily } from '../../state/ip.js'
import { ownLines, RuleLines } from '../rule-lines.js'
import { noPath, pathView } from '../path-view.js'
import { typeOf } from './service-lines.js'
import type { AppliedPlan, FamilyProgress } from './progress.js'
import type { Config, ModeName } from '../../config/config.js'
import type { DesiredService, DesiredState, Endpoint, NodeView } from '../../state/desired-state.js'
import type { PathView, PodView, Sender, ServiceView, TargetView, View } from '../view.js'
import type { PersistentMap } from '../../state/persistent-map.js'
import type { PlanReader } from '../../modes/mode.js'

/** What the viewer has selected. */
export interface Selection {
  /** `namespace/name:port`; without such a Service the first one is shown. */
  readonly service: string
  readonly sender: Sender
  readonly target: TargetView['name']
  /** A Service without this family is shown in the one that it has. */
  readonly family: IpFamily
}

export interface ChosenDeps {
  readonly mode: ModeName
  /** Both follow the file of `--config`. */
  readonly current: () => {
    readonly config: Config
    /** Takes plans apart and never makes one. */
    readonly planner: PlanReader
  }
}

/** The service port that is shown, in one family. */
export interface Shown {
  readonly key: string
  readonly progress: FamilyProgress
  /** The families in which it has addresses. */
  readonly families: readonly IpFamily[]
  readonly selection: Selection
  readonly podNames: ReadonlyMap<string, string>
}

/** The parts of the view that are about one service port. */
type ChosenParts = Pick<
  View,
  'families' | 'family' | 'service' | 'pods' | 'replicas' | 'target' | 'targets' | 'path' | 'rules'
> & { readonly nameOf: (endpoint: string) => string }

/**
 * Shows one service port in full: its pods, its rules, and the way of a connection, from the part of
 * the applied plan that is about it. A change of other Services costs nothing here.
 */
export class Chosen {
  readonly #deps: ChosenDeps
  readonly #answering = new Answering()
  readonly #rules = new RuleLines()
  #made: { readonly from: readonly unknown[]; readonly parts: ChosenParts } | undefined

  constructor(deps: ChosenDeps) {
    this.#deps = deps
  }

  show(shown: Shown): ChosenParts {
    const { key, selection, families, podNames } = shown
    const { wanted, applied } = shown.progress
    const service = applied?.state.services.get(key)
    const now = service ?? wanted.services.get(key)
    if (!now) return this.nothing()
    const { node } = applied?.state ?? wanted
    const targets = targetsOf(now, node)
    const target = targets.find(({ name }) => name === selection.target) ?? targets[0]
    const rivals = applied && target ? this.#answering.at(applied.state, target) : []
    const keys = [...new Set([key, ...rivals])]
    const names = JSON.stringify([keys, families, ...podNames])
    const parts = applied && this.#deps.current().planner.parts(applied.plan)
    const made = keys.map((each) => parts?.get(each))
    const from = [service, wanted.services.get(key), node, selection, names, ...made]
    if (this.#made && isSame(this.#made.from, from)) return this.#made.parts
    const nameOf = endpointNames(now, podNames)
    this.#made = {
      from,
      parts: {
        ...{ families, family: shown.progress.family, service: serviceView(now), nameOf },
        pods: podsOf(service, wanted.services.get(key), nameOf),
        replicas: now.servingEndpoints.length,
        target: target ? viewOf(target) : noTarget,
        targets: targets.map(viewOf),
        path:
          service && applied && target
            ? this.#path(service, applied, { keys, target, selection, nameOf })
            : noPath('The kernel does not have this Service yet: it is on its way.'),
        rules: this.#rulesOf(service && applied ? [key] : [], shown),
      },
    }
    return this.#made.parts
  }

  /** The parts of a view without Services. */
  nothing(): ChosenParts {
    const { mode } = this.#deps
    const path = noPath('There is no Service to show.')
    return {
      ...{ families: [], family: '', service: noService, pods: [], replicas: 0, targets: [], path },
      rules: { mode, modes: [mode], lines: [], lastChange: '' },
      ...{ target: noTarget, nameOf: (key) => key },
    }
  }

  #rulesOf(keys: readonly string[], { key, progress, podNames }: Shown): View['rules'] {
    const { mode, current } = this.#deps
    const { family, applied } = progress
    this.#rules.show({
      ...{ mode, of: `${family} ${key} ${keys.length}` },
      lines: applied ? ownLines(current().planner, applied.plan, keys) : [],
      around: { podAt: (ip) => podNames.get(ip) },
      known: JSON.stringify([...podNames]),
    })
    return { mode, modes: [mode], lines: this.#rules.lines, lastChange: '' }
  }

  #path(service: DesiredService, { state, plan }: AppliedPlan, way: ShownWay): PathView {
    const { mode } = this.#deps
    const { config, planner } = this.#deps.current()
    const { keys, target, selection, nameOf } = way
    const ownPod = service.reachableEndpoints.find(({ isLocal }) => isLocal)
    const from = { 'client-pod': 'pod', node: 'node', outside: 'outside', backend: ownPod?.ip }[
      selection.sender
    ]
    if (from === undefined) return noPath('No endpoint of the Service runs on this node.')
    const own = { ...state, services: state.services.pick(keys) }
    const { address } = viewOf(target)
    const question = understand({ target: address, from, protocol: service.protocol }, [own])
    if (typeof question === 'string') return noPath(question)
    const { packet } = question
    const ways = explainPlan(mode, planner.only(plan, keys), { state: own, config, packet })
    const known = new Set(service.servingEndpoints.map((endpoint) => endpoint.key))
    return pathView(ways, (ip, port) => {
      const key = hostPort(ip, port)
      return known.has(key) ? nameOf(key) : undefined
    })
  }
}

interface ShownWay {
  /** The service ports that answer at the target. */
  readonly keys: readonly string[]
  readonly target: Target
  readonly selection: Selection
  readonly nameOf: (endpoint: string) => string
}

interface Target {
  readonly name: TargetView['name']
  readonly ip: string
  readonly port: number
}

/** The service ports that answer at one address. After a change only changed ones are checked. */
class Answering {
  readonly #keys = new Set<string>()
  #last:
    | { services: PersistentMap<DesiredService>; node: NodeView; ip: string; port: number }
    | undefined

  at(state: DesiredState, { ip, port }: Target): readonly string[] {
    const { services, node } = state
    const last = this.#last
    const isSame = last?.ip === ip && last.port === port && last.node === node
    if (!isSame) this.#keys.clear()
    const { added, changed, removed } = services.since(isSame ? last.services : undefined)
    for (const [key] of removed) this.#keys.delete(key)
    for (const [key, service] of [...added, ...changed]) {
      if (answersAt(service, state, ip, port)) this.#keys.add(key)
      else this.#keys.delete(key)
    }
    this.#last = { services, node, ip, port }
    return [...this.#keys].sort()
  }
}

function isSame(a: readonly unknown[], b: readonly unknown[]): boolean {
  return a.length === b.length && a.every((value, index) => value === b[index])
}

/**
 * By endpoint key: the name of the pod if it is known and unique, else `ip:port`. Connections are
 * counted over both IP families, so there are keys that are no endpoints of this one.
 */
function endpointNames(
  service: DesiredService,
  podNames: ReadonlyMap<string, string>,
): (key: string) => string {
  const names = new Map<string, string>()
  const taken = new Set<string>()
  const own = new Set<string>()
  for (const { key, ip } of endpointsOf(service)) {
    own.add(key)
    const name = podNames.get(ip)
    if (name === undefined || names.has(key) || taken.has(name)) continue
    taken.add(name)
    names.set(key, name)
  }
  return (key) => names.get(key) ?? (own.has(key) ? undefined : podNames.get(addressOf(key))) ?? key
}

/** The endpoints that the kernel has, and those that it should have. */
function podsOf(
  applied: DesiredService | undefined,
  wanted: DesiredService | undefined,
  nameOf: (key: string) => string,
): readonly PodView[] {
  const [has, should] = [applied, wanted].map(
    (service) => new Map(endpointsOf(service).map((endpoint) => [endpoint.key, endpoint])),
  )
  const failing = new Set(wanted?.health?.failing.map(({ key }) => key))
  return Array.from(new Map([...(has ?? []), ...(should ?? [])]).values(), (endpoint) =>
    podView(endpoint, nameOf, {
      isFailing: failing.has(endpoint.key),
      isPending: has?.has(endpoint.key) !== should?.has(endpoint.key),
    }),
  )
}

/** An endpoint that fails its health check is shown, although it gets no connections. */
function endpointsOf(service: DesiredService | undefined): readonly Endpoint[] {
  return [...(service?.health?.endpoints ?? []), ...(service?.servingEndpoints ?? [])]
}

/** The page draws two nodes: this one, and one that stands for all others. */
function podView(
  { key, ip, isLocal, ready, terminating }: Endpoint,
  nameOf: (key: string) => string,
  { isFailing, isPending }: { readonly isFailing: boolean; readonly isPending: boolean },
): PodView {
  const state = isFailing ? 'failing' : ready ? 'ready' : terminating ? 'terminating' : 'not ready'
  const place = isLocal ? 'node-1' : 'node-2'
  return { name: nameOf(key), ip, node: place, state, ...(isPending ? { isPending } : {}) }
}

function serviceView(service: DesiredService): ServiceView {
  const { portName, protocol, clusterIp, port, nodePort, loadBalancerIps, sourceRanges } = service
  return {
    name: portName,
    type: typeOf(service),
    ...{ protocol, clusterIp, port, nodePort },
    loadBalancerIp: loadBalancerIps[0] ?? '',
    affinity: service.affinitySeconds !== undefined,
    internalPolicy: service.internalPolicyLocal ? 'Local' : 'Cluster',
    externalPolicy: service.externalPolicyLocal ? 'Local' : 'Cluster',
    sourceRanges: sourceRanges.map(({ text }) => text),
  }
}

const noService: ServiceView = {
  ...{ name: '', type: '', protocol: 'TCP', clusterIp: '', port: 0, nodePort: 0 },
  ...{ loadBalancerIp: '', affinity: false },
  ...{ internalPolicy: 'Cluster', externalPolicy: 'Cluster', sourceRanges: [] },
}

const noTarget: TargetView = { name: 'ClusterIP', address: '' }

function targetsOf(service: DesiredService, node: NodeView): readonly Target[] {
  const { clusterIp, port, nodePort, loadBalancerIps } = service
  const here = node.nodePorts.addresses.find((ip) => ip === node.primaryIp) ?? node.primaryIp
  const [balancer] = loadBalancerIps
  return [
    { name: 'ClusterIP', ip: clusterIp, port },
    ...(nodePort > 0 && here !== undefined
      ? [{ name: 'NodePort', ip: here, port: nodePort } as const]
      : []),
    ...(balancer === undefined ? [] : [{ name: 'LoadBalancer', ip: balancer, port } as const]),
  ]
}

function viewOf({ name, ip, port }: Target): TargetView {
  return { name, address: hostPort(ip, port) }
}
