/** Walks packets through plans, and says in few words where a connection ends. */
import { configWith } from '../../lib/config/load.js'
import { explainPacket } from '../../lib/inspect/explain/explain.js'
import { hostPort } from '../../lib/state/ip.js'
import { understand } from '../../lib/inspect/explain/question.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import type { ModeName } from '../../lib/config/config.js'
import type { Protocol } from '../../lib/state/names.js'
import type { Packet, Way } from '../../lib/inspect/explain/packet.js'

/**
 * Where a connection ends under the rules of a mode. `from` is `pod`, `node`, `outside` or an
 * address; `to` is `IP:port`. The answer is `refused`, `dropped`, `this node`, `untouched`, or the
 * endpoints, with their shares if these differ.
 * `masqueraded`: the endpoint sees an address of the node as the sender.
 * `let in`: to this node, by a rule that accepts it even if INPUT is closed otherwise.
 */
export type Walk = (from: string, to: string, protocol?: Protocol) => string

export function walkOf(
  mode: ModeName,
  state: DesiredState,
  values: Readonly<Record<string, unknown>> = {},
): Walk {
  const config = configWith(values)
  return walkBy(state, (packet) => explainPacket(mode, state, config, packet))
}

/** The same with any rules, for example those for an older kernel. */
export function walkBy(state: DesiredState, explain: (packet: Packet) => readonly Way[]): Walk {
  return (from, target, protocol) => {
    const question = understand({ target, from, protocol }, [state])
    if (typeof question === 'string') throw new Error(question)
    const ways = explain(question.packet)
    const shares = new Map<string, number>()
    for (const way of ways) {
      const end = endOf(way)
      shares.set(end, (shares.get(end) ?? 0) + way.probability * 100)
    }
    const ends = [...shares].sort(([a], [b]) => (a < b ? -1 : 1))
    const first = ends[0]?.[1] ?? 0
    if (ends.every(([, share]) => Math.abs(share - first) < 0.001)) {
      return ends.map(([end]) => end).join(' or ')
    }
    return ends.map(([end, share]) => `${share.toFixed(1)} % ${end}`).join(', ')
  }
}

function endOf({ end, hops, packet, isAnsweredPast }: Way): string {
  const { destination, port, isDnated, isMasqueraded, mark } = packet
  if (end === 'dropped') return 'dropped'
  if (end === 'rejected') return 'refused'
  if (!isDnated && end === 'sent') return 'untouched'
  if (!isDnated) return hops.at(-1)?.rule.endsWith('-j ACCEPT') ? 'let in' : 'this node'
  const endpoint = hostPort(destination, port)
  if (isAnsweredPast) return `${endpoint} answers past this node`
  // A tunnel sends the packet through the rules again, so a mark must not stay on it.
  if (mark !== 0) return `${endpoint} still marked`
  return isMasqueraded ? `${endpoint} masqueraded` : endpoint
}
