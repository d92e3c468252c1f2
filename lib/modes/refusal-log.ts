import { dropReasons, refusalGroup } from '../config/config.js'
import { rule, type Iptables, type RuleSpec } from '../kernel/iptables.js'

/** The target of a rule that tells this proxy of a packet. `reason`: why a policy drops it. */
export function logTarget(reason?: keyof typeof dropReasons): Pick<RuleSpec, 'jump' | 'jumpArgs'> {
  const group = ['--nflog-group', String(refusalGroup)]
  const prefix = reason === undefined ? [] : ['--nflog-prefix', dropReasons[reason]]
  return { jump: 'NFLOG', jumpArgs: [...prefix, ...group] }
}

/** Whether the kernel has what such a rule needs. */
export const canLog = (iptables: Pick<Iptables, 'supports'>): Promise<boolean> =>
  iptables.supports('filter', rule(logTarget('localPolicy')))

export const withoutLog =
  'the kernel cannot log to this program, so refused and dropped connections are not counted; load xt_NFLOG and nfnetlink_log'
