import type { FlowMessage } from '../../kernel/flow-message.js'
import type { FlowLine } from './line.js'

/** A reset that answers the first packet has neither options nor data, other than any acceptance. */
const resetBytes = { IPv4: 40, IPv6: 60 } as const

/** What became of a connection that has ended, from the packets that the kernel counted. */
export function outcomeOf(flow: FlowMessage): Pick<FlowLine, 'verdict' | 'why'> {
  const { hasCounters, family, packetsToClient, bytesToClient } = flow
  // A client of UDP need not wait for an answer.
  if (hasCounters && flow.protocolName === 'TCP') {
    if (packetsToClient === 0) return { verdict: 'refused', why: 'no answer' }
    if (packetsToClient === 1 && bytesToClient === resetBytes[family]) {
      return { verdict: 'refused', why: 'ECONNREFUSED' }
    }
  }
  return { verdict: 'forwarded', why: '' }
}
