import { Batch, isIptablesError, rule, type Iptables, type Rule } from '../../kernel/iptables.js'
import type { TraceTarget } from './trace-rule.js'

/** What a trace of iptables-legacy changes, and what has to be put back after it. */
export interface LegacyMarks {
  readonly target: TraceTarget
  /** Which of the kernel's loggers gets traces. */
  readonly logger: { readonly file: string; readonly before: string }
  /** Tells the rules of one trace from those of another. */
  readonly comment: string
}

/** Packets come in by the one, or start here. */
const chains = ['PREROUTING', 'OUTPUT'] as const

export async function mark(iptables: Iptables, marks: LegacyMarks): Promise<void> {
  const batch = new Batch()
  for (const chain of chains) batch.prepend('raw', chain, ruleOf(marks))
  await iptables.restore(batch)
}

export async function unmark(iptables: Iptables, marks: LegacyMarks): Promise<void> {
  const batch = new Batch()
  for (const chain of chains) batch.delete('raw', chain, ruleOf(marks))
  try {
    await iptables.restore(batch)
  } catch (error) {
    // Never made, or taken away by somebody else.
    if (!isIptablesError(error, 'not-found')) throw error
  }
}

/** In table raw nothing is known of connections yet; of TCP only what opens one is marked. */
function ruleOf({ target, comment }: LegacyMarks): Rule {
  const { ip, port, protocol } = target
  const name = protocol.toLowerCase()
  const opens = protocol === 'TCP' ? ['--tcp-flags', 'FIN,SYN,RST,ACK', 'SYN'] : []
  return rule({
    destination: ip,
    protocol: name,
    matches: [{ name, args: ['--dport', String(port), ...opens] }],
    comment,
    jump: 'TRACE',
  })
}
