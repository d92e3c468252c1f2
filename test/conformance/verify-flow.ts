import type { FlowResult } from '../../lib/lab/world/agent-protocol.js'
import { addressOf, placeOf, podsOfNode } from '../../lib/lab/world/topology.js'
import { hostPort, parseIp } from '../../lib/state/ip.js'
import type { Check, FlowMemory } from './flows.js'

/** What is wrong with the answers of a check; empty if all is as expected. */

export function verifyFlow(
  check: Check,
  results: readonly FlowResult[],
  memory: FlowMemory,
): readonly string[] {
  const { gets, flow } = check
  if (typeof gets === 'string') return results.flatMap((result) => verifyFailure(gets, result))
  const problems = results.flatMap((result) => verifyReply(check, gets, result))
  if (problems.length > 0) return [...new Set(problems)]
  const tally = new Map<string, number>()
  for (const { backend = '' } of results) tally.set(backend, (tally.get(backend) ?? 0) + 1)
  if (flow.sticky !== false) return verifySticky(check, [...tally.keys()], memory)
  if (flow.keep !== undefined || flow.use !== undefined || flow.count !== undefined) return []
  const missing = gets.filter((place) => !tally.has(place))
  if (missing.length > 0) {
    return [`${missing.join(', ')} got none of ${results.length} connections`]
  }
  return flow.evenly ? verifyEvenness(tally, results.length) : []
}

export function verifyFailure(gets: string, result: FlowResult): readonly string[] {
  const isReply = result.outcome === 'reply'
  const isRight =
    gets === 'no-reply' ? !isReply : gets === 'answered' ? isReply : result.outcome === gets
  return isRight ? [] : [`expected ${gets}, got ${seen(result)}`]
}

export function verifyReply(
  check: Check,
  gets: readonly string[],
  result: FlowResult,
): readonly string[] {
  const { client, family } = check
  const isBridged = isPodOfNode(client.place) && isPodOfNode(result.backend)
  const source = isBridged ? check.bridgedSource : check.source
  if (result.outcome !== 'reply' || !gets.includes(result.backend ?? '')) {
    return [`expected ${gets.join(' or ')}, got ${seen(result)}`]
  }
  if (source === 'kept') {
    const own = addressOf(client.place, family, client.addressIndex)
    // A node may choose any of its own addresses.
    const isOwn =
      result.source === own ||
      (client.addressIndex === 0 && placeOf(result.source ?? '') === client.place)
    return isOwn
      ? []
      : [`expected source ${own}, ${result.backend ?? ''} saw ${result.source ?? ''}`]
  }
  if (source === 'announced') return verifyAnnounced(check, result)
  if (result.announced) return ['expected no PROXY header']
  if (source === 'masqueraded' && placeOf(result.source ?? '') !== 'node') {
    return [`expected a masqueraded source, ${result.backend ?? ''} saw ${result.source ?? ''}`]
  }
  return []
}

function isPodOfNode(place: string | undefined): boolean {
  return podsOfNode.some((pod) => pod === place)
}

/**
 * Checks the header. The kernel tells the proxy which address a client asked for over TCP; for UDP
 * it tells only the proxy's own.
 */
function verifyAnnounced(
  { client, family, protocol, host, port }: Check,
  { announced }: FlowResult,
): readonly string[] {
  const who = hostOf(announced?.client ?? '')
  const isOwn = placeOf(who) === client.place
  const asked = hostPort(parseIp(host)?.text ?? host, port)
  const isAsked = protocol === 'UDP' || announced?.asked === asked
  if (isOwn && isAsked) return []
  const own = addressOf(client.place, family, client.addressIndex)
  return [`expected ${own} and ${asked} announced, got ${JSON.stringify(announced)}`]
}

function hostOf(hostAndPort: string): string {
  return hostAndPort.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1')
}

function verifySticky(
  { flow, client, target, family }: Check,
  backends: readonly string[],
  memory: FlowMemory,
): readonly string[] {
  const [backend = ''] = backends
  if (backends.length !== 1) return [`expected one backend, got ${backends.join(', ')}`]
  const key = [flow.service, flow.port, client.place, client.addressIndex, target, family].join('/')
  const remembered = memory.sticky.get(key)
  memory.sticky.set(key, backend)
  if (remembered !== undefined && remembered !== backend) memory.moved.add(flow)
  return flow.sticky === 'same' && remembered !== backend
    ? [`expected ${String(remembered)} as before, got ${backend}`]
    : []
}

/** Allows five standard deviations, which fails by chance less than once in a million runs. */
function verifyEvenness(tally: ReadonlyMap<string, number>, total: number): readonly string[] {
  const share = 1 / tally.size
  const allowed = 5 * Math.sqrt(total * share * (1 - share))
  return [...tally]
    .filter(([, count]) => Math.abs(count - total * share) > allowed)
    .map(
      ([backend, count]) => `${backend} got ${count} of ${total}, about ${total * share} is even`,
    )
}

export function seen(result: FlowResult): string {
  return result.outcome === 'reply'
    ? `${result.backend ?? ''} (source ${result.source ?? ''})`
    : `${result.outcome} (${result.error ?? ''})`
}
