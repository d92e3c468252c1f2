import { listAt, numberAt, textAt, withAt, type Json } from '../apiserver/json.js'
import { ConfigError } from '../errors.js'
import type { KubeObject } from '../apiserver/object.js'
import type { PodView, Policy, ServiceView } from './view.js'
import type { Registry } from '../apiserver/registry.js'

const labels = { app: 'web' }

/** The Deployment and the Service that the playground is about; changed as kubectl would. */
export class WebApp {
  readonly #registry: Registry

  constructor(registry: Registry) {
    this.#registry = registry
  }

  /** Makes both, as NodePort so that the outside has a way in. */
  create(replicas: number): void {
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
    this.#registry.put(this.#kind('v1', 'Service'), {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: 'web', namespace: 'default' },
      spec: {
        type: 'NodePort',
        selector: labels,
        ports: [{ name: 'http', port: 80, targetPort: 8080 }],
      },
    })
  }

  scale(replicas: number): void {
    this.#change('apps/v1', 'Deployment', ['spec', 'replicas'], replicas)
  }

  setAffinity(isOn: boolean): void {
    // The API drops the timeout itself when affinity goes, and refuses it when it stays.
    this.#change('v1', 'Service', ['spec', 'sessionAffinityConfig'], undefined, {
      sessionAffinity: isOn ? 'ClientIP' : 'None',
    })
  }

  setPolicy(side: 'internal' | 'external', policy: Policy): void {
    this.#change('v1', 'Service', ['spec', `${side}TrafficPolicy`], policy)
  }

  kill(name: string): void {
    if (!this.pods().some((pod) => pod.name === name)) {
      throw new ConfigError(`kill pod ${name}: there is none of that name; choose one of the list`)
    }
    this.#registry.delete(this.#kind('v1', 'Pod'), 'default', name, {})
  }

  replicas(): number {
    const deployment = this.#registry.find(this.#kind('apps/v1', 'Deployment'), 'default', 'web')
    return numberAt(deployment, 'spec', 'replicas') ?? 0
  }

  /** Undefined when somebody deleted it. */
  service(): ServiceView | undefined {
    const service = this.#registry.find(this.#kind('v1', 'Service'), 'default', 'web')
    if (!service) return undefined
    const [first] = listAt(service, 'spec', 'ports')
    const policy = (key: string): Policy =>
      textAt(service, 'spec', key) === 'Local' ? 'Local' : 'Cluster'
    return {
      name: 'default/web',
      clusterIp: textAt(service, 'spec', 'clusterIP'),
      port: numberAt(first, 'port') ?? 80,
      nodePort: numberAt(first, 'nodePort') ?? 0,
      affinity: textAt(service, 'spec', 'sessionAffinity') === 'ClientIP',
      internalPolicy: policy('internalTrafficPolicy'),
      externalPolicy: policy('externalTrafficPolicy'),
    }
  }

  pods(): readonly PodView[] {
    return this.#registry.store
      .list('pods')
      .filter((pod) => pod.metadata.labels?.['app'] === labels.app)
      .map((pod) => ({
        name: pod.metadata.name,
        ip: textAt(pod, 'status', 'podIP'),
        node: textAt(pod, 'spec', 'nodeName'),
        state: stateOfPod(pod),
      }))
  }

  #change(
    apiVersion: string,
    kindName: string,
    path: readonly string[],
    value: Json | undefined,
    spec: Readonly<Record<string, Json>> = {},
  ): void {
    const kind = this.#kind(apiVersion, kindName)
    let object = withAt(this.#registry.get(kind, 'default', 'web'), path, value)
    for (const [key, entry] of Object.entries(spec)) object = withAt(object, ['spec', key], entry)
    this.#registry.update(kind, object)
  }

  #kind(apiVersion: string, name: string) {
    const kind = this.#registry.resources.byKind(apiVersion, name)
    if (!kind) throw new ConfigError(`find ${name} of ${apiVersion}: this API server lacks it`)
    return kind
  }
}

function stateOfPod(pod: KubeObject): PodView['state'] {
  if (pod.metadata.deletionTimestamp !== undefined) return 'terminating'
  const isReady = listAt(pod, 'status', 'conditions').some(
    (each) => textAt(each, 'type') === 'Ready' && textAt(each, 'status') === 'True',
  )
  return isReady ? 'ready' : 'starting'
}
