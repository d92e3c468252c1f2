import { listAt, numberAt, textAt, textsAt, withAt, type JsonObject } from '../apiserver/json.js'
import { ConfigError } from '../../errors.js'
import { isEqual } from '../../state/json.js'
import { protocols } from '../../state/names.js'
import { PersistentMap } from '../../state/persistent-map.js'
import {
  isKubernetes,
  exerciseLabel,
  serviceOverWeb,
  webDeployment,
  webLabels,
} from './cluster-objects.js'
import { podNameOf, podStateOf, processAnnotation, readyAnnotation } from './pod-state.js'
import { selects } from '../apiserver/controllers/endpoints.js'
import { clientsOf, type Clients } from '../apiserver/kind-client.js'
import type { KubeObject, NewObject } from '../apiserver/object.js'
import { collectionKey } from '../apiserver/store.js'
import type { PageCommand, PodAction } from '../../page/page-command.js'
import type { PodView, Policy, ServiceLine, ServiceView } from '../../page/view.js'
import type { Registry } from '../apiserver/registry.js'
import type { ClusterLayout } from './cluster-layout.js'

type WebCommand = Extract<
  PageCommand,
  { readonly do: 'replicas' | 'pod' | 'affinity' | 'policy' | 'type' | 'ranges' }
>

const serviceNameLabel = 'kubernetes.io/service-name'

/** The annotation that each action sets on a pod. */
const wishes = {
  kill: [processAnnotation, 'stopped'],
  revive: [processAnnotation, 'running'],
  unready: [readyAnnotation, 'false'],
  ready: [readyAnnotation, 'true'],
} as const
export const firstService = 'default/web'

/**
 * The Deployment of the playground and its Services, changed as kubectl does. Every change returns
 * the arguments of the `kubectl` command that does the same.
 */
export class WebApp {
  readonly #clients: Clients
  #selected = firstService
  #lines = PersistentMap.empty<ServiceLine>()

  constructor(registry: Registry) {
    this.#clients = clientsOf(registry)
  }

  /** Creates web (TCP, with a node port for clients outside) and echo (UDP). */
  create(replicas: number, at: ClusterLayout['ports']): void {
    this.#clients.deployments.put(webDeployment(replicas))
    const ports = [{ name: 'http', port: at.web, targetPort: 8080 }]
    this.#clients.services.put(serviceOverWeb('web', { type: 'NodePort', ports }))
    const udp = [{ name: 'echo', port: at.echo, targetPort: 8080, protocol: 'UDP' }]
    this.#clients.services.put(serviceOverWeb('echo', { ports: udp }))
  }

  /** Makes everything as it was at the start. */
  reset(replicas: number, at: ClusterLayout['ports']): void {
    this.create(replicas, at)
    this.#selected = firstService
    // Pods of other namespaces are the user's own.
    for (const pod of this.#clients.pods.list().filter(isInDefault)) {
      const { [processAnnotation]: runs, [readyAnnotation]: ready } = pod.metadata.annotations ?? {}
      if (runs !== undefined || ready !== undefined) this.#clients.pods.delete(pod)
    }
    const { deployments, slices } = this.#clients
    for (const client of [deployments, slices]) {
      for (const object of client.list()) {
        if (object.metadata.labels?.[exerciseLabel] !== undefined) client.delete(object)
      }
    }
  }

  /** Replaces objects, and all pods and slices, because the old ones would mend the exercise. */
  replace(objects: readonly NewObject[]): void {
    const { deployments, services, slices, pods } = this.#clients
    const places = new Map(
      Object.entries({ Deployment: deployments, Service: services, EndpointSlice: slices }),
    )
    for (const object of objects) places.get(object.kind)?.put(object)
    const isOurs = ({ metadata }: KubeObject) => metadata.labels?.['app'] === webLabels.app
    for (const pod of pods.list().filter(isInDefault).filter(isOurs))
      pods.delete(pod, { gracePeriodSeconds: 0 })
    for (const slice of slices.list().filter(isInDefault)) {
      const { [serviceNameLabel]: of, [exerciseLabel]: exercise } = slice.metadata.labels ?? {}
      if (of === 'web' && exercise === undefined) slices.delete(slice)
    }
  }

  select(key: string): string {
    if (!this.#find(key)) throw new ConfigError(`select Service ${key}: there is no such Service`)
    this.#selected = key
    return `get service ${this.#onCommandLine()} -o wide`
  }

  #scale(replicas: number): string {
    const deployment = this.#deployment()
    if (!deployment) throw new ConfigError('scale Deployment web: it was deleted')
    this.#clients.deployments.update(withAt(deployment, ['spec', 'replicas'], replicas))
    return `scale deployment web --replicas=${replicas}`
  }

  /** `terminate` ends a pod as a rollout does; `kill` only its process, as a crash does. */
  #act(shown: string, action: PodAction): string {
    const { pods } = this.#clients
    const pod = pods.list().find((each) => podNameOf(each) === shown)
    if (!pod) {
      throw new ConfigError(`${action} pod ${shown}: there is no such pod; choose one of the list`)
    }
    const name = onCommandLine(pod.metadata)
    if (action === 'terminate') {
      pods.delete(pod)
      return `delete pod ${name} --wait=false`
    }
    const [annotation, value] = wishes[action]
    pods.update(withAt(pod, ['metadata', 'annotations', annotation], value))
    return `annotate pod ${name} ${annotation}=${value} --overwrite`
  }

  /** Executes a command of the page. Returns the arguments of `kubectl` that do the same. */
  change(command: WebCommand): string {
    switch (command.do) {
      case 'replicas':
        return this.#scale(command.count)
      case 'pod':
        return this.#act(command.pod, command.action)
      case 'affinity':
        // The API server removes the timeout together with affinity, and refuses a timeout without it.
        return this.#changed(
          { sessionAffinity: command.on ? 'ClientIP' : 'None' },
          { sessionAffinityConfig: null },
        )
      case 'policy':
        return this.#changed({ [`${command.side}TrafficPolicy`]: command.value })
      case 'type':
        // Source ranges belong to a LoadBalancer only: the API refuses them with another type.
        return this.#changed(
          command.type === 'LoadBalancer'
            ? { type: command.type }
            : { type: command.type, loadBalancerSourceRanges: null },
        )
      case 'ranges':
        return this.#changed({
          loadBalancerSourceRanges: command.ranges.length === 0 ? null : command.ranges,
        })
    }
  }

  replicas(): number {
    return numberAt(this.#deployment(), 'spec', 'replicas') ?? 0
  }

  /** Lines that say the same as before keep their reference. */
  services(): PersistentMap<ServiceLine> {
    const shown = this.#clients.services.list().filter((service) => !isKubernetes(service))
    const lines = shown.map((service): ServiceLine => ({
      key: `${service.metadata.namespace ?? ''}/${service.metadata.name}`,
      type: textAt(service, 'spec', 'type'),
      clusterIp: textAt(service, 'spec', 'clusterIP'),
      ports: listAt(service, 'spec', 'ports')
        .map((port) => `${numberAt(port, 'port') ?? 0}/${textAt(port, 'protocol')}`)
        .join(', '),
    }))
    const now = new Set(lines.map(({ key }) => key))
    const gone = [...this.#lines.keys()].filter((key) => !now.has(key))
    this.#lines = this.#lines.update([
      ...gone.map((key) => [key, undefined] as const),
      ...lines.flatMap((line) =>
        isEqual(this.#lines.get(line.key), line) ? [] : [[line.key, line] as const],
      ),
    ])
    return this.#lines
  }

  /** The selected Service; undefined when it was deleted. */
  service(): ServiceView | undefined {
    const service = this.#find(this.#selected)
    if (!service) return undefined
    const [first] = listAt(service, 'spec', 'ports')
    const [ingress] = listAt(service, 'status', 'loadBalancer', 'ingress')
    const policy = (key: string): Policy =>
      textAt(service, 'spec', key) === 'Local' ? 'Local' : 'Cluster'
    return {
      name: this.#selected,
      type: textAt(service, 'spec', 'type'),
      protocol: protocols.find((each) => each === textAt(first, 'protocol')) ?? 'TCP',
      clusterIp: textAt(service, 'spec', 'clusterIP'),
      port: numberAt(first, 'port') ?? 80,
      nodePort: numberAt(first, 'nodePort') ?? 0,
      loadBalancerIp: textAt(ingress, 'ip'),
      affinity: textAt(service, 'spec', 'sessionAffinity') === 'ClientIP',
      internalPolicy: policy('internalTrafficPolicy'),
      externalPolicy: policy('externalTrafficPolicy'),
      sourceRanges: textsAt(service, 'spec', 'loadBalancerSourceRanges'),
    }
  }

  /** Those of the selected Service come first: a picture may have no room for all. */
  pods(): readonly PodView[] {
    const pods = this.#clients.pods.list()
    const own = pods.filter((pod) => this.isSelected(pod))
    return [...own, ...pods.filter((pod) => !own.includes(pod))].map((pod) => ({
      name: podNameOf(pod),
      ip: textAt(pod, 'status', 'podIP'),
      node: textAt(pod, 'spec', 'nodeName'),
      state: podStateOf(pod),
    }))
  }

  isSelected(pod: KubeObject): boolean {
    const service = this.#find(this.#selected)
    return service !== undefined && selects(service, pod)
  }

  /**
   * Changes the selected Service. Null removes a field, as in a patch; the server itself removes
   * `also`.
   */
  #changed(spec: JsonObject, also: JsonObject = {}): string {
    let object = this.#find(this.#selected)
    if (!object) throw new ConfigError(`change Service ${this.#selected}: it was deleted`)
    for (const [key, value] of Object.entries({ ...spec, ...also })) {
      object = withAt(object, ['spec', key], value ?? undefined)
    }
    this.#clients.services.update(object)
    return `patch service ${this.#onCommandLine()} -p '${JSON.stringify({ spec })}'`
  }

  #onCommandLine(): string {
    const [namespace = '', name = ''] = this.#selected.split('/')
    return onCommandLine({ namespace, name })
  }

  #deployment(): KubeObject | undefined {
    return this.#clients.deployments.get(collectionKey('default', 'web'))
  }

  #find(key: string): KubeObject | undefined {
    const [namespace, name = ''] = key.split('/')
    return this.#clients.services.get(collectionKey(namespace, name))
  }
}

function isInDefault({ metadata }: KubeObject): boolean {
  return metadata.namespace === 'default'
}

function onCommandLine({ namespace, name }: Pick<KubeObject['metadata'], 'namespace' | 'name'>) {
  return namespace === undefined || namespace === 'default' ? name : `${name} -n ${namespace}`
}
