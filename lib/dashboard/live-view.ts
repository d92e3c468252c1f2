import { explainPacket } from '../explain/explain.js'
import { hostPort } from '../state/ip.js'
import { noCounters } from '../playground/counters.js'
import { pathView } from '../playground/rules-view.js'
import { understand } from '../explain/question.js'
import type { DesiredService, DesiredState } from '../state/desired-state.js'
import type { ModeName, ModeSettings } from '../modes/mode.js'
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
} from '../playground/view.js'

/** What somebody chose to look at. */
export interface Selection {
  /** `namespace/name:port`; the first Service where there is none of that name. */
  readonly service: string
  readonly sender: Sender
  readonly target: TargetView['name']
}

export interface LiveFacts {
  readonly mode: ModeName
  readonly settings: ModeSettings
  readonly nodeName: string
  readonly state: DesiredState | undefined
  readonly selection: Selection
  readonly rules: RulesView
  readonly answers: readonly AnswerCount[]
}

/** The page of the playground over a live daemon. Pure. */
export function liveView(facts: LiveFacts): View {
  const { mode, nodeName, state, selection, rules, answers, settings } = facts
  const service = selectedService(state, selection.service)
  const targets = service && state ? targetsOf(service, state) : []
  const target = targets.find(({ name }) => name === selection.target) ?? targets[0]
  const [namespace, name] = (service?.portName ?? '').split(/[/:]/)
  return {
    isReadOnly: true,
    where: `node ${nodeName}, as its proxy sees it; nothing can be changed here`,
    limits: [],
    mode,
    modes: [mode],
    listensItself: settings.userspace.portals === 'addresses',
    scheduler: settings.ipvs.scheduler,
    busy: state ? '' : 'waiting for Services and EndpointSlices',
    services: serviceLines(state),
    service: service ? serviceView(service) : noService,
    pods: (service?.servingEndpoints ?? []).map(podView),
    nodeNames: [nodeName, 'other nodes'],
    replicas: service?.servingEndpoints.length ?? 0,
    sender: selection.sender,
    senders: ['client-pod', 'node', 'outside', 'backend'],
    target: target ?? { name: 'ClusterIP', address: '' },
    targets,
    path: pathOf(facts, service, target),
    counters: noCounters,
    continuous: false,
    answers,
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

export function selectedService(
  state: DesiredState | undefined,
  wanted: string,
): DesiredService | undefined {
  const services = [...(state?.services.values() ?? [])]
  const byName = services.toSorted((a, b) => (a.portName < b.portName ? -1 : 1))
  return services.find(({ portName }) => portName === wanted) ?? byName[0]
}

function serviceLines(state: DesiredState | undefined): readonly ServiceLine[] {
  const lines = [...(state?.services.values() ?? [])].map((service) => ({
    key: service.portName,
    type: typeOf(service),
    clusterIp: service.clusterIp,
    ports: `${service.port}/${service.protocol}`,
  }))
  return lines.sort((a, b) => (a.key < b.key ? -1 : 1))
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

/** The objects name endpoints by address; the page draws two places, here and elsewhere. */
function podView({ key, ip, isLocal, ready, terminating }: DesiredService['servingEndpoints'][0]) {
  const state = ready ? 'ready' : terminating ? 'terminating' : 'not ready'
  const pod: PodView = { name: key, ip, node: isLocal ? 'node-1' : 'node-2', state }
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
  { mode, settings, state, selection }: LiveFacts,
  service: DesiredService | undefined,
  target: TargetView | undefined,
): PathView {
  const none = (note: string) => ({ shared: [], ways: [], note })
  if (!state || !service || !target) return none('There is no Service to show.')
  const ownPod = service.reachableEndpoints.find(({ isLocal }) => isLocal)
  const from = { 'client-pod': 'pod', node: 'node', outside: 'outside', backend: ownPod?.ip }[
    selection.sender
  ]
  if (from === undefined) return none('No endpoint of the Service runs on this node.')
  const asked = { target: target.address, from, protocol: service.protocol }
  const question = understand(asked, [state])
  if (typeof question === 'string') return none(question)
  const ways = explainPacket(mode, state, settings, question.packet)
  const keys = new Set(service.servingEndpoints.map(({ key }) => key))
  return pathView(ways, (ip, port) => {
    const key = hostPort(ip, port)
    return keys.has(key) ? key : undefined
  })
}
