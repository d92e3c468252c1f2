import type { ApiCall } from './api-call.js'
import type { KubeObject } from './object.js'
import type { Registry } from './registry.js'
import { ApiError } from './status.js'
import type { Target } from './target.js'

/** What a pod has printed, line by line, oldest first. */
export type PodLog = (pod: KubeObject) => readonly string[]

export interface PodRequestDeps {
  readonly registry: Registry
  /** Undefined where pods are addresses only. */
  readonly podLog: PodLog | undefined
}

const others = ['exec', 'attach', 'portforward', 'proxy'] as const

/** A request to a pod itself, as of `kubectl logs` and `kubectl exec`. */
export function isPodRequest({ kind, name, subresource = '' }: Target): boolean {
  const isPod = kind.group === '' && kind.kind === 'Pod' && name !== undefined
  return isPod && (subresource === 'log' || others.some((each) => each === subresource))
}

/** There is no kubelet, so this server answers for it. */
export function servePodRequest(
  call: ApiCall,
  { kind, namespace, name = '', subresource = '' }: Target,
  { registry, podLog }: PodRequestDeps,
): void {
  const pod = registry.get(kind, namespace, name)
  if (subresource !== 'log') throw notThere(name, subresource)
  if (!podLog) {
    throw new ApiError(
      400,
      'BadRequest',
      `read the log of pod ${name}: pods of this server are addresses only, so they print nothing; npm start has pods that answer requests`,
    )
  }
  const asked = call.query.get('tailLines')
  const lines = podLog(pod)
  const last = asked === null ? lines : lines.slice(lines.length - Math.max(0, Number(asked) || 0))
  call.sendText(200, last.map((line) => `${line}\n`).join(''))
}

function notThere(name: string, subresource: string): ApiError {
  const message = `${subresource} in pod ${name}: there is no container, no shell and no image here; a pod of the playground is a small server that tells its name to whoever asks. See its requests with kubectl logs ${name}, and send requests with the page`
  return new ApiError(501, 'NotImplemented', message)
}
