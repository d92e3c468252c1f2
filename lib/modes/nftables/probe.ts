import { release } from 'node:os'
import { KernelError, messageOf } from '../../errors.js'
import { Nft, type RulesetWriter } from '../../kernel/nftables/nft.js'
import {
  checkKernelVersion,
  checkNftVersion,
  leastNftText,
} from '../../kernel/nftables/requirements.js'
import { openNfTables, type NfTables } from '../../kernel/nftables-netlink/nf-tables.js'
import type { ClientReader } from '../../kernel/nftables/reader.js'
import type { IpFamily } from '../../state/ip.js'
import { failedFinding, missingIn } from '../findings.js'
import type { Finding } from '../mode.js'
import { nftFamilyOf } from './names.js'
import { hashTrialTransaction, logTrialTransaction, trialTransaction } from './trial.js'

interface ProbeDeps {
  readonly nft: Nft
  /** Throws if nf_tables cannot be reached without the program nft. */
  readonly openNetlink: () => NfTables
  readonly kernelRelease: () => string
  readonly env: Readonly<Record<string, string | undefined>>
}

/** With the value `nft` the program is used even if netlink works. */
export const writerVariable = 'KUBE_PROXY_NFTABLES_WRITER'

export const probeDefaults = (): ProbeDeps => ({
  nft: new Nft(),
  openNetlink: openNfTables,
  kernelRelease: release,
  env: process.env,
})

export interface Probed {
  readonly findings: readonly Finding[]
  /** The writer that will be used. */
  readonly writer: RulesetWriter
  readonly clients: ClientReader
  /** Rules can hash the address of a client. */
  readonly hasHash: boolean
  /** Undefined if only the program works. The caller closes it. */
  readonly netlink: NfTables | undefined
}

/** Finds out whether this node has what the mode needs (NF23), and which writer works (NF30). */
export async function probeNftables(
  deps: ProbeDeps,
  families: readonly IpFamily[],
): Promise<Probed> {
  const opened = openWriter(deps)
  // If netlink works the program is not needed. It then runs while the kernel tries the rules.
  const program = nftFinding(deps.nft, !opened.netlink)
  const needed = [...opened.findings, ...(opened.netlink ? [] : [await program])]
  const trials: Finding[] = []
  if (missingIn(needed).length === 0) {
    for (const family of families) trials.push(await trialFinding(opened.writer, family))
    trials.push(await hashFinding(opened.writer, families[0]))
  }
  const findings = [...opened.findings, await program, ...trials]
  return { ...opened, findings, hasHash: trials.at(-1)?.ok ?? false }
}

/** Opens a writer without the trial of all rules, because an earlier probe has made it. */
export async function openNftables(
  deps: ProbeDeps,
  families: readonly IpFamily[],
): Promise<Probed> {
  const opened = openWriter(deps)
  const findings = [
    ...opened.findings,
    ...(opened.netlink ? [] : [await nftFinding(deps.nft, true)]),
  ]
  if (missingIn(findings).length > 0) return { ...opened, findings, hasHash: false }
  const hash = await hashFinding(opened.writer, families[0])
  return { ...opened, findings, hasHash: hash.ok }
}

function openWriter(deps: ProbeDeps): Omit<Probed, 'hasHash'> {
  const { netlink, finding: direct } = openDirect(deps)
  const kernel = checkKernelVersion(deps.kernelRelease(), deps.env)
  return {
    findings: [{ what: 'kernel 5.13 or newer', required: true, ...kernel }, direct],
    writer: netlink ?? deps.nft,
    clients: netlink?.reader ?? deps.nft,
    netlink,
  }
}

function openDirect({ openNetlink, env }: ProbeDeps): { netlink?: NfTables; finding: Finding } {
  const what = 'nf_tables by netlink'
  const well = { what, ok: true, required: false, fix: '' }
  if (env[writerVariable] === 'nft') {
    return { finding: { ...well, seen: `switched off by ${writerVariable}=nft` } }
  }
  try {
    return { netlink: openNetlink(), finding: { ...well, seen: 'works' } }
  } catch (error) {
    const isDenied = error instanceof KernelError && error.kind === 'denied'
    const fix = isDenied ? privilegeFix : 'without it the nft program is used, which takes longer'
    return { finding: { what, ok: false, required: isDenied, seen: messageOf(error), fix } }
  }
}

const privilegeFix =
  'run as root or with CAP_NET_ADMIN (in a pod: hostNetwork and privileged, or add NET_ADMIN)'
const featureFix =
  'load or build the kernel modules nf_tables, nft_nat, nft_masq, nft_fib, nft_numgen, nft_reject and nft_ct'

async function nftFinding(nft: Nft, required: boolean): Promise<Finding> {
  const what = `nft ${leastNftText}`
  try {
    return { what, required, ...checkNftVersion(await nft.version()) }
  } catch (error) {
    const fix = 'install package nftables'
    return failedFinding({ what, required, fix }, error)
  }
}

async function trialFinding(writer: RulesetWriter, family: IpFamily): Promise<Finding> {
  const need = { what: `nftables rules of family ${nftFamilyOf(family)}`, required: true }
  try {
    await writer.check(trialTransaction(family))
    return { ...need, ok: true, seen: `works, by ${writer.name}`, fix: '' }
  } catch (error) {
    const isDenied = error instanceof KernelError && error.kind === 'denied'
    const fix = isDenied ? privilegeFix : featureFix
    return failedFinding({ ...need, fix }, error)
  }
}

/** One family is enough: nft_hash is the same for all, and to take a trial back the kernel waits. */
async function hashFinding(writer: RulesetWriter, family: IpFamily | undefined): Promise<Finding> {
  const need = { what: 'nftables hash of addresses', required: false }
  try {
    if (family) await writer.check(hashTrialTransaction(family))
    return { ...need, ok: true, seen: 'works', fix: '' }
  } catch (error) {
    const fix = 'load nft_hash; without it, balance by source-hash or maglev becomes random'
    return { ...need, ok: false, seen: messageOf(error), fix }
  }
}

/** Whether rules can log to the proxy what they refuse. Asked only if the settings want it. */
export async function canLog(
  writer: RulesetWriter,
  families: readonly IpFamily[],
): Promise<boolean> {
  try {
    for (const family of families) await writer.check(logTrialTransaction(family))
    return true
  } catch {
    return false
  }
}
