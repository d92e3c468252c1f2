import { explainPacket } from '../../inspect/explain/explain.js'
import { hostPort, type IpFamily } from '../../state/ip.js'
import { pathView } from '../path-view.js'
import { understand } from '../../inspect/explain/question.js'
import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import type { Config, ModeName } from '../../config/config.js'
import { ipvsSettings } from '../../modes/ipvs/settings.js'
import { noCounters } from '../view.js'
import type {
  AnswerCount,
  PathView,
  PodView,
  RulesView,
  Sender,
  ServiceLine,
  ServiceView,
  TargetView,
  View,
} from '../view.js'

/** What the viewer has selected. */
export interface Selection {
  /** `namespace/name:port`; without such a Service the first one is shown. */
  readonly service: string
  readonly sender: Sender
  readonly target: TargetView['name']
  /** A Service without this family is shown in the one that it has. */
  readonly family: IpFamily
}

export interface LiveFacts {
  readonly mode: ModeName
  readonly config: Config
  readonly nodeName: string
  /** One for each family. */
  readonly states: readonly DesiredState[]
  readonly selection: Selection
  /** Names of the pods of the Service that is shown, by address. */
  readonly podNames: ReadonlyMap<string, string>
  readonly rules: RulesView
  readonly answers: readonly AnswerCount[]
}

/** The page of the playground over a live daemon. Pure. */
export function liveView(facts: LiveFacts): View {
  const { mode, nodeName, states, selection, rules, answers, config } = facts
  const shown = selected(states, selection)
  const { state, service } = shown ?? {}
  const nameOf = endpointNames(service, facts.podNames)
  const targets = service && state ? targetsOf(service, state) : []
  const target = targets.find(({ name }) => name === selection.target) ?? targets[0]
  const [namespace, name] = (service?.portName ?? '').split(/[/:]/)
  return {
    isReadOnly: true,
    where: `node ${nodeName}, as its proxy sees it; nothing can be changed here`,
    limits: [],
    mode,
    modes: [mode],
    listensItself: config.userspace.portals === 'addresses',
    scheduler: ipvsSettings(config).scheduler,
    busy: states.length > 0 ? '' : 'waiting for Services and EndpointSlices',
    families: shown?.families ?? [],
    family: shown?.state.family ?? '',
    services: serviceLines(states),
    service: service ? serviceView(service) : noService,
    pods: (service?.servingEndpoints ?? []).map((endpoint) => podView(endpoint, nameOf)),
    nodeNames: [nodeName, 'other nodes'],
    replicas: service?.servingEndpoints.length ?? 0,
    sender: selection.sender,
    senders: ['client-pod', 'node', 'outside', 'backend'],
    target: target ?? { name: 'ClusterIP', address: '' },
    targets,
    path: pathOf(facts, shown, target, nameOf),
    counters: noCounters,
    continuous: false,
    answers: answers.map(({ name, count }) => ({ name: nameOf(name), count })),
    asked: answers.reduce((sum, { count }) => sum + count, 0),
    log: [],
    rules,
    timeline: null,
    lessons: [],
    objects: [],
    kubectl: service ? `kubectl get service ${name ?? ''} -n ${namespace ?? ''} -o yaml` : '',
    kubeconfig: '',
  }
}

export interface Shown {
  readonly state: DesiredState
  readonly service: DesiredService
  /** The families in which the Service has addresses. */
  readonly families: readonly IpFamily[]
}

/** The selected Service, or the first by name; in the selected family if it has that. */
export function selected(
  states: readonly DesiredState[],
  { service: wanted, family }: Selection,
): Shown | undefined {
  const names = states.flatMap(({ services }) =>
    [...services.values()].map(({ portName }) => portName),
  )
  const name = names.includes(wanted) ? wanted : names.sort()[0]
  const found = states.flatMap((state) => {
    const service = [...state.services.values()].find(({ portName }) => portName === name)
    return service ? [{ state, service }] : []
  })
  const chosen = found.find(({ state }) => state.family === family) ?? found[0]
  return chosen && { ...chosen, families: found.map(({ state }) => state.family) }
}

/** By endpoint key: the name of the pod if it is known and unique, else `ip:port`. */
function endpointNames(
  service: DesiredService | undefined,
  podNames: ReadonlyMap<string, string>,
): (key: string) => string {
  const names = new Map<string, string>()
  for (const { key, ip } of service?.servingEndpoints ?? []) {
    const name = podNames.get(ip)
    if (name !== undefined && ![...names.values()].includes(name)) names.set(key, name)
  }
  return (key) => names.get(key) ?? key
}

/** One line a service port, with its addresses of all families. */
function serviceLines(states: readonly DesiredState[]): readonly ServiceLine[] {
  const lines = new Map<string, ServiceLine>()
  for (const service of states.flatMap(({ services }) => [...services.values()])) {
    const { portName, clusterIp, port, protocol } = service
    const known = lines.get(portName)
    lines.set(portName, {
      key: portName,
      type: typeOf(service),
      clusterIp: known ? `${known.clusterIp}, ${clusterIp}` : clusterIp,
      ports: `${port}/${protocol}`,
    })
  }
  return [...lines.values()].sort((a, b) => (a.key < b.key ? -1 : 1))
}

function typeOf({ loadBalancerIps, nodePort }: DesiredService): string {
  if (loadBalancerIps.length > 0) return 'LoadBalancer'
  return nodePort > 0 ? 'NodePort' : 'ClusterIP'
}

function serviceView(service: DesiredService): ServiceView {
  const { portName, protocol, clusterIp, port, nodePort, loadBalancerIps, sourceRanges } = service
  return {
    name: portName,
    type: typeOf(service),
    protocol: protocol === 'UDP' ? 'UDP' : 'TCP',
    ...{ clusterIp, port, nodePort },
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

/** The page draws two places, here and elsewhere. */
function podView(
  { key, ip, isLocal, ready, terminating }: DesiredService['servingEndpoints'][0],
  nameOf: (key: string) => string,
) {
  const state = ready ? 'ready' : terminating ? 'terminating' : 'not ready'
  const pod: PodView = { name: nameOf(key), ip, node: isLocal ? 'node-1' : 'node-2', state }
  return pod
}

function targetsOf(service: DesiredService, { node }: DesiredState): readonly TargetView[] {
  const { clusterIp, port, nodePort, loadBalancerIps } = service
  const here = node.nodePorts.addresses.find((ip) => ip === node.primaryIp) ?? node.primaryIp
  const [balancer] = loadBalancerIps
  return [
    { name: 'ClusterIP', address: hostPort(clusterIp, port) },
    ...(nodePort > 0 && here !== undefined
      ? [{ name: 'NodePort', address: hostPort(here, nodePort) } as const]
      : []),
    ...(balancer === undefined
      ? []
      : [{ name: 'LoadBalancer', address: hostPort(balancer, port) } as const]),
  ]
}

function pathOf(
  { mode, config, selection }: LiveFacts,
  shown: Shown | undefined,
  target: TargetView | undefined,
  nameOf: (key: string) => string,
): PathView {
  const none = (note: string) => ({ shared: [], ways: [], note })
  if (!shown || !target) return none('There is no Service to show.')
  const { state, service } = shown
  const ownPod = service.reachableEndpoints.find(({ isLocal }) => isLocal)
  const from = { 'client-pod': 'pod', node: 'node', outside: 'outside', backend: ownPod?.ip }[
    selection.sender
  ]
  if (from === undefined) return none('No endpoint of the Service runs on this node.')
  const asked = { target: target.address, from, protocol: service.protocol }
  const question = understand(asked, [state])
  if (typeof question === 'string') return none(question)
  const ways = explainPacket(mode, state, config, question.packet)
  const keys = new Set(service.servingEndpoints.map(({ key }) => key))
  return pathView(ways, (ip, port) => {
    const key = hostPort(ip, port)
    return keys.has(key) ? nameOf(key) : undefined
  })
}
