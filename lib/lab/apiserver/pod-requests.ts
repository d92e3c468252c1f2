import type { ApiCall } from './api-call.js'
import type { KubeObject } from './object.js'
import type { Registry } from './registry.js'
import { ApiError } from './status.js'
import type { Target } from './target.js'

/** Called for every line that a pod prints from now on. */
export interface LogFollower {
  readonly printed: (line: string) => void
  /** The pod is gone. */
  readonly ended: () => void
}

export interface PodLog {
  /** What a pod has printed, oldest first. */
  lines(pod: KubeObject): readonly string[]
  /** Follows the pod until the returned function is called. */
  follow(pod: KubeObject, follower: LogFollower): () => void
}

/** A client that leaves more bytes unread is gone or stuck. */
const longestBacklog = 1024 * 1024

interface PodRequestDeps {
  readonly registry: Registry
  /** Undefined where pods are addresses only. */
  readonly podLog: PodLog | undefined
}

// `kubectl debug` asks for the last one.
const others = ['exec', 'attach', 'portforward', 'proxy', 'ephemeralcontainers'] as const

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
  const lines = podLog.lines(pod)
  const last = asked === null ? lines : lines.slice(lines.length - Math.max(0, Number(asked) || 0))
  const body = call.open(200, 'text/plain; charset=utf-8')
  body.write(last.map((line) => `${line}\n`).join(''))
  if (!call.isTrue('follow')) {
    body.end()
    return
  }
  const { response } = call
  response.flushHeaders()
  const printed = (line: string) => {
    if (body.backlog > longestBacklog) response.destroy()
    else body.write(`${line}\n`)
  }
  response.once('close', podLog.follow(pod, { printed, ended: () => body.end() }))
}

function notThere(name: string, subresource: string): ApiError {
  const message = `${subresource} in pod ${name}: there is no container, no shell and no image here; a pod of the playground is a small server that tells its name to every client. See its requests with kubectl logs ${name}, and send requests with the page`
  return new ApiError(501, 'NotImplemented', message)
}
