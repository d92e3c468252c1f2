import type { IncomingMessage, ServerResponse } from 'node:http'
import { aggregatedDiscovery, coreVersions, groupList, groupOf, resourceList } from './discovery.js'
import { admit } from './admission.js'
import { ApiCall } from './api-call.js'
import type { Disturb, Verb } from './disturbance.js'
import type { JsonObject } from './json.js'
import {
  openapiIndex,
  openapiOf,
  openapiV2,
  openapiV2AsProtobuf,
  openapiV2Protobuf,
} from './openapi.js'
import { isPodRequest, servePodRequest, type PodLog } from './pod-requests.js'
import { sendList, sendOne, type Asked } from './reading.js'
import { parseTarget, type Target } from './target.js'
import { podProxyTarget, servePodProxy, type PodProxyDeps } from './pod-proxy.js'
import { asApiError, badRequest, methodNotAllowed, noSuchPath, unauthorized } from './status.js'
import { serveWatch, type WatchDeps } from './watching.js'
import {
  serveCreate,
  serveDelete,
  serveDeleteCollection,
  servePatch,
  serveUpdate,
} from './writing.js'

export interface RouteDeps extends WatchDeps, PodProxyDeps {
  /** What the server listens on, as it was configured. */
  readonly host: string
  readonly podLog: PodLog | undefined
  /** Which bearer tokens are accepted; undefined accepts every client. */
  readonly accepts: ((token: string) => boolean) | undefined
  readonly disturb: Disturb
}

/** The version of the cluster that clients see. */
const version: JsonObject = {
  major: '1',
  minor: '36',
  gitVersion: 'v1.36.0+kube-proxy-ts',
  gitCommit: '',
  gitTreeState: 'clean',
  buildDate: '1970-01-01T00:00:00Z',
  goVersion: '',
  compiler: '',
  platform: `${process.platform}/${process.arch}`,
}

const authorization = 'authorization.k8s.io/v1'

/** What `kubectl auth can-i` asks. Whoever is let in may do everything. */
const reviews: Readonly<Record<string, JsonObject | undefined>> = {
  [`apis/${authorization}/selfsubjectaccessreviews`]: {
    kind: 'SelfSubjectAccessReview',
    apiVersion: authorization,
    metadata: {},
    spec: {},
    status: { allowed: true, reason: 'this server has no authorization' },
  },
  [`apis/${authorization}/selfsubjectrulesreviews`]: {
    kind: 'SelfSubjectRulesReview',
    apiVersion: authorization,
    metadata: {},
    spec: {},
    status: {
      resourceRules: [{ verbs: ['*'], apiGroups: ['*'], resources: ['*'] }],
      nonResourceRules: [{ verbs: ['*'], nonResourceURLs: ['*'] }],
      incomplete: false,
    },
  },
}

/** Answers one request; never throws. */
export async function serve(
  request: IncomingMessage,
  response: ServerResponse,
  deps: RouteDeps,
): Promise<void> {
  const url = urlOf(request.url ?? '/')
  if (url === undefined) {
    const call = new ApiCall(request, response, { url: new URL('http://localhost/') })
    call.sendError(badRequest('the path cannot be read'))
    return
  }
  const target = parseTarget(url.pathname, deps.registry.resources)
  const verb = verbOf(request.method ?? 'GET', target, url.searchParams)
  const disturbance = target && verb && deps.disturb(verb, target.kind.plural)
  const call = new ApiCall(request, response, { url, writerOf: disturbance?.writerOf })
  try {
    admit(request, deps.host)
    if (!isLetIn(request, deps)) throw unauthorized()
    if (disturbance?.answer) disturbance.answer(call)
    else if (target === undefined) await serveOther(call, deps)
    else if (isPodRequest(target)) servePodRequest(call, target, deps)
    else if (verb === undefined) throw methodNotAllowed(request.method ?? '')
    else await serveResource(call, verb, target, deps)
  } catch (error) {
    call.sendError(asApiError(error))
  }
}

/** Parses the target of a request. `//x` is a path here, and not a host. */
function urlOf(target: string): URL | undefined {
  const text = target.startsWith('/') ? `http://localhost${target}` : target
  return URL.canParse(text) ? new URL(text) : undefined
}

function verbOf(
  method: string,
  target: Target | undefined,
  query: URLSearchParams,
): Verb | undefined {
  if (method === 'GET' && ['true', '1'].includes(query.get('watch') ?? '')) return 'watch'
  return verbs.get(method)?.[target?.name === undefined ? 'ofAll' : 'ofOne']
}

/** The verb of each method for a collection, and for one object. */
const verbs: ReadonlyMap<string, { readonly ofAll?: Verb; readonly ofOne?: Verb }> = new Map([
  ['GET', { ofAll: 'list', ofOne: 'get' }],
  ['POST', { ofAll: 'create' }],
  ['PUT', { ofOne: 'update' }],
  ['PATCH', { ofOne: 'patch' }],
  ['DELETE', { ofAll: 'deletecollection', ofOne: 'delete' }],
])

const answers: Readonly<Record<Exclude<Verb, 'watch'>, (asked: Asked) => unknown>> = {
  get: sendOne,
  list: sendList,
  create: serveCreate,
  update: serveUpdate,
  patch: servePatch,
  delete: serveDelete,
  deletecollection: serveDeleteCollection,
}

async function serveResource(
  call: ApiCall,
  verb: Verb,
  target: Target,
  deps: RouteDeps,
): Promise<void> {
  const { kind, name = '', subresource } = target
  const isKnown = kind.subresources.some((each) => each === subresource)
  if (subresource !== undefined && !isKnown) throw noSuchPath()
  if (verb === 'watch') serveWatch(call, target, deps)
  else await answers[verb]({ call, target, name, registry: deps.registry })
}

async function serveOther(call: ApiCall, deps: RouteDeps): Promise<void> {
  const pod = podProxyTarget(call)
  if (pod) await servePodProxy(call, pod, deps)
  else serveDocument(call, deps)
}

function serveDocument(call: ApiCall, deps: RouteDeps): void {
  const resources = deps.registry.resources.all
  const { path } = call
  if (['/healthz', '/livez', '/readyz'].includes(path)) {
    call.sendText(200, 'ok')
    return
  }
  const accept = call.request.headers.accept ?? ''
  const parts = path.split('/').filter((part) => part !== '')
  const [root, first = ''] = parts
  if (root === 'api' || root === 'apis') {
    const asked = aggregatedVersion(accept)
    if (first === '' && asked !== undefined) {
      const type = `application/json;g=apidiscovery.k8s.io;v=${asked};as=APIGroupDiscoveryList`
      call.send(200, aggregatedDiscovery(root, asked, resources), type)
      return
    }
  }
  if (call.path === '/openapi/v2' && openapiV2Protobuf.asked.test(accept)) {
    call.sendBytes(openapiV2AsProtobuf(resources), openapiV2Protobuf.answered)
    return
  }
  const review = call.request.method === 'POST' ? reviews[parts.join('/')] : undefined
  if (review) {
    call.send(201, review)
    return
  }
  const document = documentAt(parts, deps)
  if (document === undefined) throw noSuchPath()
  call.send(200, document)
}

function documentAt(path: readonly string[], deps: RouteDeps): JsonObject | undefined {
  const resources = deps.registry.resources.all
  const [root, first = '', second = '', ...rest] = path
  switch (root) {
    case 'api':
      return first === ''
        ? coreVersions
        : second === ''
          ? resourceList(first, resources)
          : undefined
    case 'apis':
      if (first === '') return groupList(resources)
      // A path that goes on below a known version names a resource that is not served.
      if (rest.length > 0) return undefined
      return second === ''
        ? groupOf(first, resources)
        : resourceList(`${first}/${second}`, resources)
    case 'version':
      return version
    case 'openapi':
      if (first === 'v2' && second === '') return openapiV2(resources)
      if (first !== 'v3') return undefined
      return second === '' ? openapiIndex(resources) : openapiOf(rest.join('/'), resources)
    default:
      return undefined
  }
}

/** `v2` or `v2beta1` when the client knows aggregated discovery. */
function aggregatedVersion(accept: string): 'v2' | 'v2beta1' | undefined {
  for (const range of accept.split(',')) {
    if (!range.includes('as=APIGroupDiscoveryList')) continue
    if (range.includes('v=v2beta1')) return 'v2beta1'
    if (range.includes('v=v2')) return 'v2'
  }
  return undefined
}

function isLetIn(request: IncomingMessage, deps: RouteDeps): boolean {
  if (deps.accepts === undefined) return true
  const [scheme, token = ''] = (request.headers.authorization ?? '').split(' ')
  return scheme?.toLowerCase() === 'bearer' && deps.accepts(token)
}
