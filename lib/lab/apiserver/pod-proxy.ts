import { request } from 'node:http'
import { isLinkLocal, isLoopback, isUnspecified, parseIp } from '../../state/ip.js'
import { codeOf, messageOf } from '../../errors.js'
import { textAt } from './json.js'
import { ApiError, badRequest, methodNotAllowed, notFound } from './status.js'
import type { ApiCall } from './api-call.js'
import type { Registry } from './registry.js'

/** `/api/v1/namespaces/x/pods/NAME:PORT/proxy/…`: an HTTP request to a pod, through this server. */
interface PodProxyTarget {
  readonly namespace: string
  readonly name: string
  readonly port: number
  /** With the query. */
  readonly path: string
}

const pattern = /^\/api\/v1\/namespaces\/([^/]+)\/pods\/([^/]+)\/proxy(\/.*)?$/

/** Undefined for any other path. */
export function podProxyTarget(call: ApiCall): PodProxyTarget | undefined {
  const [, namespace, place, rest = '/'] = pattern.exec(call.path) ?? []
  if (namespace === undefined || place === undefined) return undefined
  const [, name, port = '80'] =
    /^(?:http:)?([a-z0-9.-]+)(?::(\d{1,5}))?$/.exec(decoded(place)) ?? []
  if (name === undefined || Number(port) > 65_535) {
    throw badRequest(`invalid pod request ${JSON.stringify(place)}`)
  }
  const query = call.query.toString()
  const path = query === '' ? rest : `${rest}?${query}`
  return { namespace: decoded(namespace), name, port: Number(port), path }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw badRequest(`the path has a wrong escape: ${JSON.stringify(text)}`)
  }
}

export interface PodProxyDeps {
  readonly registry: Registry
  /** Whether requests may go to this machine itself; a real server refuses that, too. */
  readonly proxiesToLoopback: boolean
}

/** Sends a GET to the pod, and its answer to the client. */
export async function servePodProxy(
  call: ApiCall,
  { namespace, name, port, path }: PodProxyTarget,
  { registry, proxiesToLoopback }: PodProxyDeps,
): Promise<void> {
  // Only GET is allowed, so that no client can make this server change anything elsewhere.
  if (call.request.method !== 'GET') throw methodNotAllowed(call.request.method ?? '')
  const kind = registry.resources.byKind('v1', 'Pod')
  if (!kind) throw notFound({ group: '', plural: 'pods', kind: 'Pod' }, name)
  const ip = parseIp(textAt(registry.get(kind, namespace, name), 'status', 'podIP'))
  if (!ip) throw badRequest(`address not allowed: pod ${JSON.stringify(name)} has none yet`)
  const isHere = isLoopback(ip) || isUnspecified(ip)
  // Clouds tell a machine its secrets at a link-local address.
  if (isLinkLocal(ip) || (isHere && !proxiesToLoopback)) throw badRequest('address not allowed')
  await new Promise<void>((resolve, reject) => {
    const outgoing = request({ host: ip.text, port, path }, (answer) => {
      call.response.writeHead(answer.statusCode ?? 502, {
        'Content-Type': answer.headers['content-type'] ?? 'application/octet-stream',
      })
      answer.on('error', () => call.response.destroy())
      answer.pipe(call.response)
      answer.on('close', resolve)
    })
    call.response.on('close', () => outgoing.destroy())
    outgoing.on('error', (error) => reject(unreachable(`${ip.text}:${port}`, error)))
    outgoing.end()
  })
}

/** In the words of a real server. */
function unreachable(place: string, error: Error): ApiError {
  const isRefused = codeOf(error) === 'ECONNREFUSED'
  const reason = isRefused ? `dial tcp ${place}: connect: connection refused` : messageOf(error)
  return new ApiError(503, 'ServiceUnavailable', `error trying to reach service: ${reason}`)
}
