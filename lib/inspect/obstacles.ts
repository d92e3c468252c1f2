import { backendHere, chainNames, legacyChainNames } from '../modes/chain-names.js'
import { chains as iptablesChains } from '../modes/iptables/names.js'
import { chains as nftablesChains, tableName } from '../modes/nftables/names.js'
import { natChains } from '../modes/userspace/names.js'
import type { ModeName } from '../config/config.js'
import type { IpFamily } from '../state/ip.js'

const signs = [
  { modes: ['iptables', 'ipvs'], chain: `nat ${iptablesChains.services}` },
  { modes: ['userspace'], chain: `nat ${natChains.portalsContainer}` },
  { modes: ['nftables', 'ebpf'], chain: `${tableName} ${nftablesChains.services}` },
] as const satisfies readonly { readonly modes: readonly ModeName[]; readonly chain: string }[]

/** The chains of each backend, and the backend in which this node's proxy writes by iptables. */
const kernelRules = { nft: chainNames, legacy: legacyChainNames, backend: backendHere }

/**
 * Rules of other modes, or of this one in the other backend of iptables: the kernel uses them, too,
 * and they may decide first.
 */
export async function otherRules(
  mode: ModeName,
  family: IpFamily,
  kernel: typeof kernelRules = kernelRules,
): Promise<readonly string[]> {
  const [nft, legacy] = await Promise.all([kernel.nft(family), kernel.legacy(family)])
  const found = signs.flatMap((sign) => [
    ...(nft?.has(sign.chain) === true ? [{ ...sign, backend: 'nft' } as const] : []),
    ...(legacy.has(sign.chain) ? [{ ...sign, backend: 'legacy' } as const] : []),
  ])
  const isOfMode = ({ modes }: (typeof signs)[number]) => modes.some((own) => own === mode)
  const isTwice = found.filter(isOfMode).length > 1
  const backend = isTwice ? await kernel.backend(family) : undefined
  return found
    .filter((one) => !isOfMode(one) || (backend !== undefined && one.backend !== backend))
    .map(({ modes, chain, backend: where }) => {
      const place = `chain ${chain}${where === 'legacy' ? ' of iptables-legacy' : ''}`
      return `the kernel also has ${family} rules of ${modes.join(' or ')} mode (${place}), which may decide before those of ${mode} mode; end the other proxy if one runs, then restart this one, which removes them`
    })
}
