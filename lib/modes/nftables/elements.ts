import type { DnatTarget, Element } from '../../kernel/nftables/model.js'
import { endpointMaps, sizeSet } from './names.js'
import type { ElementRequest, PlaceTable } from './part.js'

/** Whether the kernel would hold the same for both. */
export function sameRequest(a: ElementRequest, b: ElementRequest): boolean {
  const [some, others] = [a.shared?.placed ?? [], b.shared?.placed ?? []]
  return (
    sameElement(a, b) &&
    some.length === others.length &&
    some.every((target, index) => sameTarget(target, others[index]))
  )
}

/** Whether the element itself is the same, whatever endpoints belong to it. */
export function sameElement(a: ElementRequest, b: ElementRequest): boolean {
  return (
    a.comment === b.comment &&
    a.verdict?.to === b.verdict?.to &&
    chainOf(a.verdict) === chainOf(b.verdict)
  )
}

export function sameTarget(a: DnatTarget | undefined, b: DnatTarget | undefined): boolean {
  return a?.ip === b?.ip && a?.port === b?.port
}

/** The elements that a request puts into a map of endpoints. */
export function endpointElements({ key, shared }: ElementRequest): readonly Element[] {
  const [address, , port] = key
  if (!shared || address === undefined || port === undefined) return []
  const set = endpointMaps[shared.choice.protocol]
  return shared.placed.map((target, index) => ({ set, key: [address, port, index], target }))
}

/** The element that says how many places a Service has; undefined for the smallest number. */
export function sizeElement({ key, shared }: ElementRequest): Element | undefined {
  const [address, , port] = key
  const set = shared && sizeSet(shared.choice)
  return set && address !== undefined && port !== undefined
    ? { set, key: [address, port] }
    : undefined
}

export function tableElements(table: PlaceTable): readonly Element[] {
  return Array.from(table.places, (_, place): Element => {
    const target = targetAt(table, place)
    return { set: table.set, key: [place], ...(target ? { target } : {}) }
  })
}

export function targetAt({ places, endpoints }: PlaceTable, place: number): DnatTarget | undefined {
  return endpoints[places[place] ?? 0]
}

/** All that the kernel holds for a request. */
export function elementsWith(request: ElementRequest): readonly Element[] {
  const size = sizeElement(request)
  return [request, ...(size ? [size] : []), ...endpointElements(request)]
}

const chainOf = (verdict: ElementRequest['verdict']) =>
  verdict && 'chain' in verdict ? verdict.chain : undefined
