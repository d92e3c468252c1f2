import { readFileSync } from 'node:fs'
import { createServer, request, type IncomingMessage, type Server } from 'node:http'
import { parseAllDocuments } from 'yaml'

/** A right that a rule of RBAC grants, or that an API server needs to answer a request. */
export interface Right {
  readonly verb: string
  /** The resource with its group before it and its subresource after it, if any: `pods/proxy`. */
  readonly resource: string
  /** Undefined: all namespaces, or a resource without namespaces. */
  readonly namespace: string | undefined
}

interface Role {
  readonly kind: string
  readonly metadata: { readonly namespace?: string }
  readonly rules: readonly {
    readonly apiGroups: readonly string[]
    readonly resources: readonly string[]
    readonly verbs: readonly string[]
  }[]
}

export const rightText = ({ verb, resource, namespace }: Right) =>
  `${verb} ${resource}${namespace === undefined ? '' : ` in ${namespace}`}`

const grouped = (group: string, resource: string) =>
  group === '' ? resource : `${group}/${resource}`

/** The rights that the roles of a file grant. A wildcard matches nothing here. */
export function grantsIn(file: string, kinds = ['Role', 'ClusterRole']): readonly Right[] {
  return parseAllDocuments(readFileSync(file, 'utf8'))
    .map((document) => document.toJS() as Role)
    .filter(({ kind }) => kinds.includes(kind))
    .flatMap(({ metadata: { namespace }, rules }) =>
      rules.flatMap(({ apiGroups, resources, verbs }) =>
        apiGroups.flatMap((group) =>
          resources.flatMap((resource) =>
            verbs.map((verb) => ({ verb, resource: grouped(group, resource), namespace })),
          ),
        ),
      ),
    )
}

const verbs: Readonly<Record<string, string>> = {
  POST: 'create',
  PUT: 'update',
  PATCH: 'patch',
  DELETE: 'delete',
}
const apiPath =
  /^(?:\/api\/v1|\/apis\/([^/]+)\/[^/]+)\/(?:namespaces\/([^/]+)\/)?([^/]+)(?:\/([^/]+)(?:\/([^/]+))?)?/

/** The right that an API server needs to answer this request. */
function neededFor({ method = '', url = '' }: IncomingMessage): Right {
  const { pathname, searchParams } = new URL(url, 'http://api')
  const match = apiPath.exec(pathname)
  if (!match) return { verb: method.toLowerCase(), resource: pathname, namespace: undefined }
  const [, group = '', namespace, resource = '', name, subresource] = match
  const read = name !== undefined ? 'get' : searchParams.get('watch') === 'true' ? 'watch' : 'list'
  const whole = subresource === undefined ? resource : `${resource}/${subresource}`
  return { verb: verbs[method] ?? read, resource: grouped(group, whole), namespace }
}

const isAllowedBy = (needed: Right) => (grant: Right) =>
  grant.verb === needed.verb &&
  grant.resource === needed.resource &&
  (grant.namespace === undefined || grant.namespace === needed.namespace)

export interface GuardedServer {
  /** The server does not listen yet. */
  readonly server: Server
  /** The grants that requests have used. */
  readonly used: ReadonlySet<Right>
  /** The rights that requests needed and no grant gave. */
  readonly refused: ReadonlySet<string>
}

/**
 * An API server with RBAC in front of one that has none. It passes on what the grants allow and
 * answers the rest by 403.
 */
export function guardedServer(url: string, grants: readonly Right[]): GuardedServer {
  const used = new Set<Right>()
  const refused = new Set<string>()
  const server = createServer((incoming, answer) => {
    const needed = neededFor(incoming)
    const allowing = grants.filter(isAllowedBy(needed))
    if (allowing.length === 0) {
      refused.add(rightText(needed))
      const message = `forbidden: ${rightText(needed)}`
      const status = { apiVersion: 'v1', kind: 'Status', status: 'Failure', message, code: 403 }
      answer.writeHead(403, { 'content-type': 'application/json' })
      answer.end(JSON.stringify({ ...status, reason: 'Forbidden' }))
      return
    }
    for (const grant of allowing) used.add(grant)
    const { method, headers } = incoming
    const outgoing = request(url + (incoming.url ?? '/'), { method, headers }, (reply) => {
      answer.writeHead(reply.statusCode ?? 500, reply.headers)
      reply.pipe(answer)
    })
    outgoing.on('error', () => answer.destroy())
    incoming.pipe(outgoing)
  })
  return { server, used, refused }
}
