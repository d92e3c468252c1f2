import { release } from 'node:os'
import { messageOf } from '../../errors.js'
import type { Nft } from '../../kernel/nftables/nft.js'
import {
  checkKernelVersion,
  checkNftVersion,
  type VersionVerdict,
} from '../../kernel/nftables/requirements.js'
import type { IpFamily } from '../../state/ip.js'
import type { Finding } from '../mode.js'
import { nftFamilyOf } from './names.js'
import { trialTransaction } from './trial.js'

export interface ProbeDeps {
  readonly nft: Nft
  readonly kernelRelease: () => string
  readonly env: Readonly<Record<string, string | undefined>>
}

export const probeDefaults = { kernelRelease: release, env: process.env }

/** NF23, NF30: what this mode needs, and whether it is there. */
export async function probeNftables(
  deps: ProbeDeps,
  families: readonly IpFamily[],
): Promise<readonly Finding[]> {
  const findings: Finding[] = [await nftFinding(deps.nft)]
  const kernel = checkKernelVersion(deps.kernelRelease(), deps.env)
  findings.push(finding('kernel 5.13 or newer', kernel))
  if (findings.some(({ ok }) => !ok)) return findings
  const tables = await attempt('right to list nftables tables', privilegeFix, () =>
    deps.nft.listTables(),
  )
  findings.push(tables)
  if (!tables.ok) return findings
  for (const family of families) {
    findings.push(
      await attempt(`nftables rules of family ${nftFamilyOf(family)}`, featureFix, () =>
        deps.nft.check(trialTransaction(family)),
      ),
    )
  }
  return findings
}

const privilegeFix =
  'run as root or with CAP_NET_ADMIN (in a pod: hostNetwork and privileged, or add NET_ADMIN)'
const featureFix =
  'load or build the kernel modules nf_tables, nft_nat, nft_masq, nft_fib, nft_numgen, nft_reject and nft_ct'

async function nftFinding(nft: Nft): Promise<Finding> {
  const what = 'nft 1.0.1 or newer'
  try {
    return finding(what, checkNftVersion(await nft.version()))
  } catch (error) {
    return {
      what,
      ok: false,
      required: true,
      seen: messageOf(error),
      fix: 'install package nftables',
    }
  }
}

const finding = (what: string, { ok, seen, fix }: VersionVerdict): Finding => ({
  what,
  ok,
  required: true,
  seen,
  fix,
})

async function attempt(what: string, fix: string, work: () => Promise<unknown>): Promise<Finding> {
  try {
    await work()
    return { what, ok: true, required: true, seen: 'works', fix: '' }
  } catch (error) {
    return { what, ok: false, required: true, seen: messageOf(error), fix }
  }
}
