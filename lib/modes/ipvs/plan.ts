import type { DesiredService, DesiredState } from '../../state/desired-state.js'
import { isNotLoopback, isScoped, type IpFamily } from '../../state/ip.js'
import { PersistentMap, type Derivation } from '../../state/persistent-map.js'
import { memoryByFacts } from '../planner-memory.js'
import { updateRequests, type Requests } from '../requests.js'
import { chainsOf, type ChainFacts, type ChainRule } from './chains.js'
import { isSameResource, type ResourceRequest, type ServicePart } from './resource.js'
import { servicePart, type PartFacts } from './service-part.js'
import type { IpvsSettings } from './settings.js'

/** Everything that the kernel should hold for one family. */
export interface IpvsPlan {
  readonly family: IpFamily
  /** By `DesiredService.key`: what each service port asks for. */
  readonly parts: PersistentMap<ServicePart>
  readonly requests: Requests<ResourceRequest>
  /** The iptables rules: their number does not depend on the Services. */
  readonly chains: readonly ChainRule[]
  /** The scheduler of Services that choose none, or choose one that this kernel lacks. */
  readonly scheduler: string
}

type PlanSettings = Pick<
  IpvsSettings,
  'scheduler' | 'masqueradeAll' | 'masqueradeBit' | 'dropsInvalid' | 'logsRefused'
>

interface Facts {
  readonly part: PartFacts
  readonly chains: ChainFacts
}

interface Memory {
  readonly facts: PartFacts
  readonly chains: readonly ChainRule[]
  readonly derivation: Derivation<DesiredService, ServicePart>
  last: { readonly parts: PersistentMap<ServicePart>; readonly plan: IpvsPlan } | undefined
}

/**
 * Makes plans. Only to save work it remembers parts, by the reference of their Service, and the
 * last plan, with whose requests the next plan starts.
 */
export function ipvsPlanner(settings: PlanSettings): (state: DesiredState) => IpvsPlan {
  const memoryFor = memoryByFacts<Facts, Memory>(({ part, chains }, before) => ({
    facts: part,
    chains: chainsOf(chains),
    derivation: {},
    last: before?.last,
  }))
  return (state) => {
    const memory = memoryFor(state.family, factsOf(state, settings))
    const { last, facts, chains } = memory
    const parts = state.services.derive(memory.derivation, (service) => servicePart(service, facts))
    const known = last?.plan.requests ?? noRequests
    const requests = updateRequests(known, parts.since(last?.parts), reader)
    const { family } = state
    // The same plan by reference means that there is nothing to apply.
    const plan =
      last?.plan.requests === requests && last.plan.chains === chains
        ? last.plan
        : { family, parts, requests, chains, scheduler: facts.scheduler }
    memory.last = { parts, plan }
    return plan
  }
}

/** The plan as if there were only these service ports. */
export function onlyOf(plan: IpvsPlan, keys: readonly string[]): IpvsPlan {
  const parts = plan.parts.pick(keys)
  return { ...plan, parts, requests: updateRequests(noRequests, parts.since(undefined), reader) }
}

const noRequests = PersistentMap.empty<readonly ResourceRequest[]>()

const reader = {
  *of({ owner, resources }: ServicePart) {
    for (const [id, resource] of resources) {
      // Of several Services at one address, one with endpoints gets it, as in other modes.
      const isLast = resource.kind === 'server' && resource.reals.size === 0
      yield [id, { owner, resource, isLast }] as const
    }
  },
  isSame: (a: ResourceRequest, b: ResourceRequest) => isSameResource(a.resource, b.resource),
}

function factsOf({ family, node }: DesiredState, settings: PlanSettings): Facts {
  // Each device of a pod has such an address. With them, each new pod would bring a virtual server for
  // each node port.
  const unscoped = (addresses: readonly string[]) => addresses.filter((one) => !isScoped(one))
  return {
    part: {
      family,
      scheduler: settings.scheduler,
      primaryIp: node.primaryIp,
      nodePortAddresses: unscoped(node.nodePorts.addresses).filter(isNotLoopback),
      ownAddresses: new Set(unscoped(node.localAddresses)),
      logsRefused: settings.logsRefused,
    },
    chains: {
      family,
      localTraffic: node.localTraffic,
      masqueradeAll: settings.masqueradeAll,
      masqueradeMark: 2 ** settings.masqueradeBit,
      dropsInvalid: settings.dropsInvalid,
      logsRefused: settings.logsRefused,
    },
  }
}
