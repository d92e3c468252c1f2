import { exerciseLabel, serviceOverWeb, webDeployment } from './cluster-objects.js'
import { withAt } from '../apiserver/json.js'
import type { NewObject } from '../apiserver/object.js'
import type { ModeName } from '../../config/config.js'
import type { PageCommand } from '../../page/page-command.js'
import type { Sender, TargetView } from '../../page/view.js'
import { addressIn, type ClusterLayout } from './cluster-layout.js'

/** Something that was broken on purpose: a learner finds out what, and mends it. */
export interface Exercise {
  readonly id: string
  readonly title: string
  /** Who complains, and about what. */
  readonly story: string
  /** Each says more than the one before. */
  readonly hints: readonly string[]
  /** Of each group at least one must be available here; nothing is needed if absent. */
  readonly needs?: readonly (readonly (ModeName | 'outside')[])[]
  /** The objects that replace those of a new cluster. */
  readonly broken: (layout: ClusterLayout) => readonly NewObject[]
  /** The number of pods that run in it, ready or not; 3 if absent. */
  readonly pods?: number
  readonly commands?: readonly PageCommand[]
  /**
   * The request of its client; a pod asks the ClusterIP if absent. The exercise is solved when all
   * such requests are answered.
   */
  readonly ask?: {
    readonly from: Sender
    readonly to: TargetView['name']
    /** The port that the client knows; absent where it learns it from the Service. */
    readonly port?: (layout: ClusterLayout) => number
  }
  readonly moral: string
}

export const fromPod: NonNullable<Exercise['ask']> = { from: 'client-pod', to: 'ClusterIP' }
const rules = ['iptables', 'ipvs', 'nftables', 'ebpf'] as const
const type = 'NodePort'
const targetPort = 8080

function web({ ports }: ClusterLayout, spec: object = {}, port: object = {}): NewObject {
  const own = { name: 'http', port: ports.web, targetPort, ...port }
  return serviceOverWeb('web', { type, ports: [own], ...spec })
}

/** All pods on the second node. */
function elsewhere(): NewObject {
  const selector = { 'kubernetes.io/hostname': 'node-2' }
  return withAt(webDeployment(2), ['spec', 'template', 'spec', 'nodeSelector'], selector)
}

/** The ten exercises, from the most common cause to the rarest. Data, as in lessons.ts. */
export const exercises: readonly Exercise[] = [
  {
    id: 'nobody',
    title: 'Nobody is at home',
    story: 'Since last night nobody can reach the shop: every connection is refused at once.',
    hints: [
      'Refused at once means: the node answers for the Service, because there is nobody to send to. Look at the way, hop by hop.',
      'A Service without endpoints is refused. How many pods are in the list?',
      'Somebody scaled the Deployment to 0. Press + beside Pods.',
    ],
    broken: () => [webDeployment(0)],
    pods: 0,
    moral:
      'No pods, no endpoints, and the connection is refused. The first look: kubectl get pods.',
  },
  {
    id: 'selector',
    title: 'The wrong label',
    story:
      'A colleague cleaned up the YAML of the Service. All pods are ready, but connections are refused.',
    hints: [
      'The pods are ready, but the way does not lead to them. Who says which pods belong to a Service?',
      'Compare spec.selector of the Service with the labels of a pod, both under Objects.',
      'In the YAML of Service web change the selector to app: web, and apply it.',
    ],
    broken: (layout) => [web(layout, { selector: { app: 'wbe' } })],
    moral:
      'A selector that matches nothing is no error, so nothing warns. Look at the EndpointSlice: it is empty.',
  },
  {
    id: 'readiness',
    title: 'Running, and not ready',
    story: 'A new version was rolled out. All pods run, and no request gets through.',
    hints: [
      'Look at the state of the pods.',
      'A pod that fails its readiness probe stays out of the Service, although its process runs.',
      'Here you are the probe: press “ready” at each pod.',
    ],
    broken: () => [
      withAt(webDeployment(3), ['spec', 'template', 'metadata', 'annotations'], {
        'playground/ready': 'false',
      }),
    ],
    moral:
      'Running is what the process does, ready is what the probe says. Only ready pods are endpoints.',
  },
  {
    id: 'target-port',
    title: 'The wrong door',
    story: 'The Service has three ready endpoints, and still every connection fails at once.',
    hints: [
      'The way leads to the pods now. So it is the pods that refuse.',
      'On which port do the pods listen, and on which are they asked? Look at the last hop, and at containerPort in the YAML of a pod.',
      'In the YAML of Service web set targetPort: 8080, and apply it.',
    ],
    broken: (layout) => [web(layout, {}, { targetPort: 8088 })],
    moral:
      'Refused can come from the rules, which have no endpoint, or from the pod, which does not listen there. The way tells them apart.',
  },
  {
    id: 'client-port',
    title: 'It works here',
    story:
      'The developers see it work. The client does not: it has had the same port in its configuration for years.',
    hints: [
      'Press “check”: it says which address and port the client asks. Then look at the address that you ask.',
      'A Service answers on spec.ports[].port only, whatever its pods listen on.',
      'In the YAML of Service web change port to the one that the client asks, and apply it.',
    ],
    broken: (layout) => [web(layout, {}, { port: layout.ports.web + 8000 })],
    ask: { ...fromPod, port: ({ ports }) => ports.web },
    moral:
      'port is what clients ask, targetPort is where pods listen, nodePort is on every node. Ask what the client really sends.',
  },
  {
    id: 'internal-local',
    title: 'Only for neighbours',
    story:
      'Clients on node-2 are content. Clients on node-1, as the client pod here, get no answer at all, not even a refusal.',
    hints: [
      'No answer means: a rule drops the packets. Read the way, hop by hop.',
      'Where are the pods, and where is the client?',
      'With internal policy Local a Service uses pods of the node of the client only. Switch it off under “The Service”.',
    ],
    broken: (layout) => [elsewhere(), web(layout, { internalTrafficPolicy: 'Local' })],
    pods: 2,
    moral: 'internalTrafficPolicy Local never leaves the node, not even if nobody is there.',
  },
  {
    id: 'external-local',
    title: 'Every second node',
    story:
      'From outside, the node port answers on node-2 and is silent on node-1. The load balancer in front sends to both.',
    hints: [
      'Send from outside to the NodePort of node-1, and read the way.',
      'External policy Local keeps the address of the client, and uses pods of this node only. Node-1 has none.',
      'Switch external policy Local off. A real load balancer would ask healthCheckNodePort instead, and leave node-1 out.',
    ],
    needs: [rules, ['outside']],
    broken: (layout) => [elsewhere(), web(layout, { externalTrafficPolicy: 'Local' })],
    pods: 2,
    commands: [
      { do: 'mode', mode: 'iptables' },
      { do: 'sender', sender: 'outside' },
      { do: 'target', target: 'NodePort' },
    ],
    ask: { from: 'outside', to: 'NodePort' },
    moral:
      'externalTrafficPolicy Local needs a load balancer that asks the health port of each node, or pods on every node.',
  },
  {
    id: 'ranges',
    title: 'Not on the list',
    story:
      'Customers in 192.168.50.0/24 get no answer from the load balancer. Inside of the cluster all is well.',
    hints: [
      'Which rule drops the packet of a sender outside? Its words name a field of the Service.',
      'loadBalancerSourceRanges says who may use the load balancer.',
      'Under “The Service” set the source ranges to 192.168.50.0/24.',
    ],
    needs: [rules, ['outside']],
    broken: (layout) => [
      web(layout, { type: 'LoadBalancer', loadBalancerSourceRanges: ['192.168.5.0/24'] }),
    ],
    commands: [
      { do: 'mode', mode: 'iptables' },
      { do: 'sender', sender: 'outside' },
      { do: 'target', target: 'LoadBalancer' },
    ],
    ask: { from: 'outside', to: 'LoadBalancer' },
    moral:
      'A firewall drops and does not refuse, so the client waits. One digit is enough: read ranges as a machine does.',
  },
  {
    id: 'intruder',
    title: 'One in four',
    story:
      'Three requests are answered, the fourth is refused, and so on. A restart of the client helps, for one request.',
    hints: [
      'Send 100, and count. How many pods has the Service, and how many are yours?',
      'The pod of Deployment worker has the label app: web, too, and does not listen on 8080.',
      'In the YAML of Service web write selector: {app: web, tier: front}. Only the pods of Deployment web have both.',
    ],
    needs: [rules],
    broken: () => [
      withAt(webDeployment(3), ['spec', 'template', 'metadata', 'labels'], {
        app: 'web',
        tier: 'front',
      }),
      worker,
    ],
    pods: 4,
    // Userspace mode hides the bad endpoint, because its proxy then tries the next one.
    commands: [{ do: 'mode', mode: 'iptables' }],
    moral:
      'A part that fails, in a share such as 1 in 4, is one endpoint of four. Selectors catch whatever has the label.',
  },
  {
    id: 'by-hand',
    title: 'Written by hand',
    story:
      'This Service has no selector: its endpoints were written by hand, before the pods moved. Every connection fails.',
    hints: [
      'Nothing looks after such endpoints. Whose address is in EndpointSlice web-by-hand?',
      'The slice has the address of a machine where nobody listens. The addresses of the pods are in the list of pods.',
      'In the YAML of EndpointSlice web-by-hand write the address of a ready pod, and apply it.',
    ],
    broken: (layout) => [web(layout, { selector: {} }), sliceByHand(layout)],
    moral:
      'Without a selector no controller follows the pods. Good for a database outside of the cluster; for pods use a selector.',
  },
]

/** A Deployment of somebody else, with a label too many. */
const worker: NewObject = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'worker', namespace: 'default', labels: { [exerciseLabel]: 'intruder' } },
  spec: {
    replicas: 1,
    selector: { matchLabels: { tier: 'worker' } },
    template: {
      metadata: { labels: { app: 'web', tier: 'worker' } },
      spec: {
        containers: [
          { name: 'worker', image: 'built-in', ports: [{ name: 'jobs', containerPort: 9000 }] },
        ],
      },
    },
  },
}

function sliceByHand(layout: ClusterLayout): NewObject {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: 'web-by-hand',
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': 'web', [exerciseLabel]: 'by-hand' },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: targetPort, protocol: 'TCP' }],
    endpoints: [{ addresses: [addressIn(layout, 'remote-pod')], conditions: { ready: true } }],
  }
}
