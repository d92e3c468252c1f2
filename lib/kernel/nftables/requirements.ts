import { atLeast } from '../../platform.js'

/** Which nft and which kernel can carry a Service ruleset (NF23, NF30). Pure: text in, verdict out. */

export interface VersionVerdict {
  readonly ok: boolean
  readonly seen: string
  /** Advice for the user; empty when ok. */
  readonly fix: string
}

/**
 * kube-proxy accepts 1.0.1. Our maps of endpoints have a number in their key, which nft refuses
 * before 1.0.3. Netlink does not need the program.
 */
const leastNft = [1, 0, 3] as const
export const leastNftText = `${leastNft.join('.')} or newer`
const nftFix = `install nftables ${leastNftText}`
const leastKernel = [5, 13] as const

/** Releases that accept our rules and then crash on them or read them wrongly (NF30). */
const badNft: Readonly<Record<string, string>> = {
  '1.0.6.1': 'it crashes on, or misreads, verdict maps that it wrote itself',
  '1.1.7': 'it writes the numbers in maps with their bytes reversed, so no rule finds them',
}

/** `output` is what `nft --version` printed. */
export function checkNftVersion(output: string): VersionVerdict {
  const text = /\bv(\d+(?:\.\d+)+)/.exec(output)?.[1]
  if (text === undefined) {
    return { ok: false, seen: output.trim(), fix: nftFix }
  }
  const bad = badNft[text]
  if (bad !== undefined) {
    return {
      ok: false,
      seen: `${text}: ${bad}`,
      fix: `nft ${text} is refused; install another release, such as 1.0.9 or 1.1.3`,
    }
  }
  const ok = atLeast(text, leastNft)
  return { ok, seen: text, fix: ok ? '' : nftFix }
}

const skipKernelCheckVariable = 'KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK'

/** `release` is what `uname -r` prints; the variable with any value skips the check. */
export function checkKernelVersion(
  release: string,
  env: Readonly<Record<string, string | undefined>>,
): VersionVerdict {
  if (env[skipKernelCheckVariable] !== undefined) {
    return { ok: true, seen: `${release}, check skipped`, fix: '' }
  }
  const ok = atLeast(release, leastKernel)
  const fix = `boot kernel 5.13 or newer, or, if its nf_tables was brought up to date, set ${skipKernelCheckVariable}=1`
  return { ok, seen: release, fix: ok ? '' : fix }
}
