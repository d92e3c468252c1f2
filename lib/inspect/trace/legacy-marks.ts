import { Batch, isIptablesError, rule, type Iptables, type Rule } from '../../kernel/iptables.js'
import type { TraceTarget } from './trace-rule.js'

/** What a trace of iptables-legacy changes, and what is restored after it. */
export interface LegacyMarks {
  readonly target: TraceTarget
  /** The kernel's logger that gets traces. */
  readonly logger: { readonly file: string; readonly before: string }
  /** Identifies the rules of this trace. */
  readonly comment: string
}

/** Packets enter the node through the first, and packets of the node start in the second. */
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
    // The marks were never made, or they were removed already.
    if (!isIptablesError(error, 'not-found')) throw error
  }
}

/**
 * Table raw comes before connection tracking, so for TCP the flags select packets that open a
 * connection.
 */
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
