import {
  addressType,
  bytecode,
  connectionState,
  Iptables,
  isIptablesError,
  markIs,
  randomly,
  remember,
  rule,
} from '../../kernel/iptables.js'
import { failedFinding } from '../findings.js'
import { waitToProbe } from '../xtables-lock.js'
import type { OpenDeps } from './open.js'
import type { Family, Match } from '../../kernel/iptables.js'
import type { Finding, Log } from '../mode.js'

interface Need {
  readonly what: string
  readonly match: Match
  /** True if Services do not work without the match; false if only some features need it. */
  readonly required: boolean
  readonly fix: string
}

/** The matches that the rules use. */
const needs: readonly Need[] = [
  {
    what: 'comment',
    match: { name: 'comment', args: ['--comment', 'probe'] },
    required: true,
    fix: 'xt_comment',
  },
  { what: 'conntrack', match: connectionState('NEW'), required: true, fix: 'xt_conntrack' },
  { what: 'statistic', match: randomly(0.5), required: true, fix: 'xt_statistic' },
  { what: 'addrtype', match: addressType('dst', 'LOCAL'), required: true, fix: 'xt_addrtype' },
  { what: 'mark', match: markIs(1), required: true, fix: 'xt_mark' },
  {
    what: 'recent',
    match: remember('PROBE'),
    required: false,
    fix: 'xt_recent; without it Services with session affinity are refused',
  },
  {
    what: 'bpf',
    match: bytecode([[6, 0, 0, 0]]),
    required: false,
    fix: 'xt_bpf; without it hairpin traffic takes a rule for each endpoint of the node, and balance by source-hash becomes random',
  },
]

export async function probeFamily(
  family: Family,
  log: Log,
  deps: Pick<OpenDeps, 'run' | 'backend'>,
): Promise<Finding[]> {
  const program = family === 'IPv4' ? 'iptables' : 'ip6tables'
  // One family is enough to run; the other is left out (IT49).
  const required = family === 'IPv4'
  try {
    const iptables = await Iptables.open({ family, onLocked: waitToProbe(log), ...deps })
    const { backend, version } = iptables.capabilities
    const seen = `${version.join('.')}, ${backend === 'nft' ? 'nf_tables' : 'legacy'}`
    await iptables.check()
    const findings: Finding[] = [{ what: program, ok: true, required, seen, fix: '' }]
    const rules = needs.map(({ match }) => rule({ matches: [match], jump: 'RETURN' }))
    const supported = await iptables.supportsEach('nat', rules)
    for (const [index, need] of needs.entries()) {
      const ok = supported[index] === true
      findings.push({
        what: `${program} match ${need.what}`,
        ok,
        required: required && need.required,
        seen: ok ? 'works' : 'refused',
        fix: ok ? '' : `load kernel module ${need.fix}`,
      })
    }
    return findings
  } catch (error) {
    const fix = isIptablesError(error, 'denied')
      ? 'run as root or with CAP_NET_ADMIN'
      : isIptablesError(error, 'missing')
        ? 'install iptables'
        : 'see the message'
    return [failedFinding({ what: program, required, fix }, error)]
  }
}
