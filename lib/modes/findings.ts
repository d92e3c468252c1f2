import { KernelError, messageOf } from '../errors.js'
import { isIptablesError } from '../kernel/iptables.js'
import type { Finding } from './mode.js'

/** The requirements of a mode that this node does not meet. */
export function missingIn(findings: readonly Finding[]): readonly Finding[] {
  return findings.filter(({ ok, required }) => required && !ok)
}

export function refuseMissing(mode: string, findings: readonly Finding[]): void {
  const missing = missingIn(findings)
  const [first] = missing
  if (!first) return
  const kind = first.seen.includes('not permitted') ? 'denied' : 'unsupported'
  const reasons = missing.map(({ what, seen, fix }) => `${what}: ${seen}; ${fix}`)
  throw new KernelError(kind, `use ${mode} mode: ${reasons.join('; ')}`)
}

/** Whether koffi loads, for modes that run without it. `whatFor` continues the sentence. */
export function probeKoffi(whatFor: string, fix: string): Promise<Finding> {
  return attempt({ what: `koffi, for ${whatFor}`, required: false, fix }, async () => {
    await import('koffi')
    return 'loads'
  })
}

/** Tries what the mode needs, and makes a finding of the result. `work` returns what was seen. */
export async function attempt(
  need: Pick<Finding, 'what' | 'required' | 'fix'>,
  work: () => Promise<string>,
): Promise<Finding> {
  try {
    return { ...need, ok: true, seen: await work(), fix: '' }
  } catch (error) {
    const isDenied =
      (error instanceof KernelError || isIptablesError(error)) && error.kind === 'denied'
    const fix = isDenied ? 'run as root or with CAP_NET_ADMIN' : need.fix
    return failedFinding({ ...need, fix }, error)
  }
}

/** What a mode needs, which this error keeps from it. */
export function failedFinding(
  need: Pick<Finding, 'what' | 'required' | 'fix'>,
  error: unknown,
): Finding {
  return { ...need, ok: false, seen: messageOf(error), mayPass: mayPass(error) }
}

/** Whether work that failed may succeed soon, on the same node. */
function mayPass(error: unknown): boolean {
  if (!(error instanceof KernelError) && !isIptablesError(error)) return false
  return ['busy', 'locked', 'timed-out', 'failed'].includes(error.kind)
}
