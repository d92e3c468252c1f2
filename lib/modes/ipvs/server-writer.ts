import type { Ipvs, IpvsChange, IpvsFailure, VirtualServer } from '../../kernel/ipvs.js'
import { ownerOf, type Changes } from './changes.js'
import type { DrainingServers } from './draining.js'
import { weightless } from './names.js'
import type { IpvsPlan } from './plan.js'
import type { Refusal } from './refused.js'
import { serverId, serverText } from './resource.js'
import type { SchedulerFallback } from './scheduler-fallback.js'

interface WriterDeps {
  readonly ipvs: Pick<Ipvs, 'change'>
  readonly draining: DrainingServers
  readonly fallback: SchedulerFallback
}

/** Writes virtual servers with their real servers, in another way where the kernel refuses one. */
export class ServerWriter {
  readonly #deps: WriterDeps

  constructor(deps: WriterDeps) {
    this.#deps = deps
  }

  /** The changes that add and set servers. A real server that drains serves again. */
  additions(changes: Changes): readonly IpvsChange[] {
    const effective = (server: VirtualServer) => this.#deps.fallback.effective(server)
    const servers = [
      ...changes.addServers.map((server) => ({ do: 'add-server' as const, server })),
      ...changes.setServers.map((server) => ({ do: 'set-server' as const, server })),
    ].map(({ do: verb, server }) => ({ do: verb, server: effective(server) }))
    const mayNotDrain = servers.filter(({ server }) => server.scheduler === weightless)
    const list: IpvsChange[] = [
      ...servers,
      ...mayNotDrain.flatMap(({ server }) => this.#deps.draining.end(server)),
    ]
    for (const change of changes.addReals) {
      const { server, real } = change
      // A draining server is still in the table, with its connections.
      const verb = this.#deps.draining.has(change) ? 'set-real' : 'add-real'
      this.#deps.draining.forget(change)
      list.push({ do: verb, server, real })
    }
    for (const change of changes.setReals) {
      this.#deps.draining.forget(change)
      list.push({ do: 'set-real', server: change.server, real: change.real })
    }
    return list
  }

  /** Makes the changes. A change that fails is tried once more in another way, if there is one. */
  async change(plan: IpvsPlan, list: readonly IpvsChange[]): Promise<Refusal[]> {
    const { ipvs } = this.#deps
    const failures: IpvsFailure[] = []
    const retries: IpvsChange[] = []
    const replaced = new Set<string>()
    for (const failure of await ipvs.change(list)) {
      const { change, error } = failure
      const other = this.#otherWay(plan, failure)
      if (other) {
        retries.push(other)
        if (change.do === 'add-server' && error.kind === 'not-found') {
          replaced.add(serverText(change.server))
        }
      } else if (change.do === 'add-real' && replaced.has(serverText(change.server))) {
        // It was refused only because its server was refused.
        retries.push(change)
      } else if (!isDone(failure)) failures.push(failure)
    }
    if (retries.length > 0) failures.push(...(await ipvs.change(retries)))
    return failures.map(({ change, error }) => ({
      id: serverId(change.server),
      key: ownerOf(plan, serverId(change.server)),
      reason: error.message,
      isAddition: change.do.startsWith('add'),
    }))
  }

  /** Returns another change with the same result, if there is one. */
  #otherWay(plan: IpvsPlan, { change, error }: IpvsFailure): IpvsChange | undefined {
    const exists = error.kind === 'exists'
    // ENOENT means an unknown real server or scheduler. An unknown virtual server gives ESRCH.
    const isUnknown = error.detail === 'ENOENT'
    switch (change.do) {
      case 'add-server':
      case 'set-server': {
        if (exists) return { do: 'set-server', server: change.server }
        const server = isUnknown
          ? this.#deps.fallback.replace(change.server, plan.scheduler)
          : undefined
        return server && { do: change.do, server }
      }
      case 'add-real':
        return exists ? { ...change, do: 'set-real' } : undefined
      case 'set-real':
        return isUnknown ? { ...change, do: 'add-real' } : undefined
      default:
        return undefined
    }
  }
}

/** A deletion succeeds also if the thing was gone before. */
function isDone({ change, error }: IpvsFailure): boolean {
  return change.do.startsWith('delete') && error.kind === 'not-found'
}
