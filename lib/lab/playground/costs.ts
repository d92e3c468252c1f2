import type { CostView, ServiceView } from '../../page/view.js'
import type { PlaceKind } from '../../kernel/place.js'
import type { Way } from '../../inspect/explain/packet.js'

/**
 * What a connection costs and shows in a mode, counted from its ways. `alone` are the ways through a cluster with this
 * Service only. Every mode has the same lines in the same order.
 */
export function costsOf(
  protocol: ServiceView['protocol'],
  ways: readonly Way[],
  alone: readonly Way[],
): readonly CostView[] {
  const rules = range(ways.map((way) => way.rules))
  const others = most(ways) - most(alone)
  const sockets = protocol === 'TCP' ? '2 for each connection' : '1 for each client'
  const isProxied = ways.some(meets('listeners'))
  return [
    { name: 'hops', value: range(ways.map(({ hops }) => hops.length)) },
    { name: 'chains of rules', value: range(ways.map(({ chains }) => chains)) },
    {
      name: 'rules compared with its first packet',
      value: others === 0 ? rules : `${rules}; ${others} of other Services`,
    },
    { name: 'its address is replaced', value: replacedWords(ways) },
    { name: 'its bytes pass kube-proxy', value: isProxied ? 'yes, all of them' : 'no' },
    { name: 'sockets of kube-proxy', value: isProxied ? sockets : 'none' },
    { name: 'the pod sees', value: seenWords(ways) },
    ...(protocol === 'TCP'
      ? [{ name: 'a pod that does not answer', value: silence(isProxied) }]
      : []),
  ]
}

const silence = (isProxied: boolean) =>
  isProxied ? 'kube-proxy tries the next one' : 'the request fails'

function most(ways: readonly Way[]): number {
  return Math.max(0, ...ways.map(({ rules }) => rules))
}

function range(numbers: readonly number[]): string {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)]
  return low === high ? String(low) : `${low} to ${high}`
}

const meets = (kind: PlaceKind) => (way: Way) =>
  way.hops.some(({ path: [at] }) => at?.kind === kind)

function replacedWords(ways: readonly Way[]): string {
  if (!ways.some(({ packet }) => packet.isDnated)) return 'no'
  if (ways.some(meets('call'))) return 'once, by connect()'
  // Without rules a listener is at the address itself.
  return ways.some(({ rules }) => rules > 0) ? 'in every packet' : 'no'
}

function seenWords(ways: readonly Way[]): string {
  const sent = ways.filter(({ end }) => end === 'sent')
  const hidden = sent.filter(({ packet }) => packet.isMasqueraded).length
  if (sent.length === 0) return 'nothing: no pod is reached'
  if (hidden === 0) return 'the sender'
  return hidden === sent.length ? 'an address of the node' : 'the sender, or the node for some pods'
}
