import { listAt, numberAt, textAt, textsAt, withAt, type Json } from '../apiserver/json.js'
import { ConfigError } from '../../errors.js'
import { podStateOf, processAnnotation, readyAnnotation } from './pod-state.js'
import type { KubeObject } from '../apiserver/object.js'
import type {
  PodAction,
  PodView,
  Policy,
  ServiceLine,
  ServiceType,
  ServiceView,
} from '../../page/view.js'
import type { Registry } from '../apiserver/registry.js'
import type { Site } from './site.js'

const labels = { app: 'web' }

/** What a pod is told, by annotation. */
const wishes = {
  kill: [processAnnotation, 'stopped'],
  revive: [processAnnotation, 'running'],
  unready: [readyAnnotation, 'false'],
  ready: [readyAnnotation, 'true'],
} as const
export const firstService = 'default/web'

/**
 * The Deployment that the playground is about and the Services over it, changed as kubectl
 * would. Every change returns the words behind `kubectl` that do the same.
 */
export class WebApp {
  readonly #registry: Registry
  #selected = firstService

  constructor(registry: Registry) {
    this.#registry = registry
  }

  /** Makes web (TCP, with a node port so that the outside has a way in) and echo (UDP). */
  create(replicas: number, at: Site['ports']): void {
    const template = {
      metadata: { labels },
      spec: { containers: [{ name: 'web', image: 'built-in' }] },
    }
    this.#registry.put(this.#kind('apps/v1', 'Deployment'), {
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata: { name: 'web', namespace: 'default' },
      spec: { replicas, selector: { matchLabels: labels }, template },
    })
    const service = (name: string, spec: Readonly<Record<string, Json>>) => ({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name, namespace: 'default' },
      spec: { selector: labels, ...spec },
    })
    const services = this.#kind('v1', 'Service')
    const ports = [{ name: 'http', port: at.web, targetPort: 8080 }]
    this.#registry.put(services, service('web', { type: 'NodePort', ports }))
    const udp = [{ name: 'echo', port: at.echo, targetPort: 8080, protocol: 'UDP' }]
    this.#registry.put(services, service('echo', { ports: udp }))
  }

  select(key: string): string {
    if (!this.#find(key)) throw new ConfigError(`select Service ${key}: there is none of that name`)
    this.#selected = key
    return `get service ${this.#onCommandLine()} -o wide`
  }

  scale(replicas: number): string {
    this.#registry.update(
      this.#kind('apps/v1', 'Deployment'),
      withAt(this.#deployment(), ['spec', 'replicas'], replicas),
    )
    return `scale deployment web --replicas=${replicas}`
  }

  setAffinity(isOn: boolean): string {
    // The API drops the timeout itself when affinity goes, and refuses it when it stays.
    const spec = { sessionAffinity: isOn ? 'ClientIP' : 'None' }
    this.#change({ ...spec, sessionAffinityConfig: undefined })
    return this.#patch(spec)
  }

  setPolicy(side: 'internal' | 'external', policy: Policy): string {
    return this.#changed({ [`${side}TrafficPolicy`]: policy })
  }

  /** What belongs to another type has to go with it, or the API refuses the change. */
  setType(type: ServiceType): string {
    const spec = type === 'LoadBalancer' ? { type } : { type, loadBalancerSourceRanges: null }
    return this.#changed(spec)
  }

  setSourceRanges(ranges: readonly string[]): string {
    return this.#changed({ loadBalancerSourceRanges: ranges.length === 0 ? null : ranges })
  }

  /** `terminate` ends a pod as a rollout does; `kill` only its process, as a crash does. */
  act(name: string, action: PodAction): string {
    const kind = this.#kind('v1', 'Pod')
    const pod = this.#registry.find(kind, 'default', name)
    if (!pod) {
      throw new ConfigError(`${action} pod ${name}: there is none of that name; choose of the list`)
    }
    if (action === 'terminate') {
      this.#registry.delete(kind, 'default', name, {})
      return `delete pod ${name} --wait=false`
    }
    const [annotation, value] = wishes[action]
    this.#registry.update(kind, withAt(pod, ['metadata', 'annotations', annotation], value))
    return `annotate pod ${name} ${annotation}=${value} --overwrite`
  }

  replicas(): number {
    const deployment = this.#registry.find(this.#kind('apps/v1', 'Deployment'), 'default', 'web')
    return numberAt(deployment, 'spec', 'replicas') ?? 0
  }

  services(): readonly ServiceLine[] {
    return this.#registry.store.list('services').map((service) => ({
      key: keyOf(service),
      type: textAt(service, 'spec', 'type'),
      clusterIp: textAt(service, 'spec', 'clusterIP'),
      ports: listAt(service, 'spec', 'ports')
        .map((port) => `${numberAt(port, 'port') ?? 0}/${textAt(port, 'protocol')}`)
        .join(', '),
    }))
  }

  /** The selected one; undefined when somebody deleted it. */
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
      protocol: textAt(first, 'protocol') === 'UDP' ? 'UDP' : 'TCP',
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

  pods(): readonly PodView[] {
    return this.#registry.store.list('pods').map((pod) => ({
      name: pod.metadata.name,
      ip: textAt(pod, 'status', 'podIP'),
      node: textAt(pod, 'spec', 'nodeName'),
      state: podStateOf(pod),
    }))
  }

  #changed(spec: Readonly<Record<string, Json>>): string {
    this.#change(spec)
    return this.#patch(spec)
  }

  /** Null removes a field, as in a patch. */
  #change(spec: Readonly<Record<string, Json | undefined>>): void {
    let object = this.#find(this.#selected)
    if (!object) throw new ConfigError(`change Service ${this.#selected}: it is gone`)
    for (const [key, value] of Object.entries(spec)) {
      object = withAt(object, ['spec', key], value ?? undefined)
    }
    this.#registry.update(this.#kind('v1', 'Service'), object)
  }

  #patch(spec: Readonly<Record<string, Json>>): string {
    return `patch service ${this.#onCommandLine()} -p '${JSON.stringify({ spec })}'`
  }

  #onCommandLine(): string {
    const [namespace = '', name = ''] = this.#selected.split('/')
    return namespace === 'default' ? name : `${name} -n ${namespace}`
  }

  #deployment(): KubeObject {
    return this.#registry.get(this.#kind('apps/v1', 'Deployment'), 'default', 'web')
  }

  #find(key: string): KubeObject | undefined {
    const [namespace, name = ''] = key.split('/')
    return this.#registry.find(this.#kind('v1', 'Service'), namespace, name)
  }

  #kind(apiVersion: string, name: string) {
    const kind = this.#registry.resources.byKind(apiVersion, name)
    if (!kind) throw new ConfigError(`find ${name} of ${apiVersion}: this API server lacks it`)
    return kind
  }
}

function keyOf({ metadata }: KubeObject): string {
  return `${metadata.namespace ?? ''}/${metadata.name}`
}
