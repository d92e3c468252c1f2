import { kernelError } from '../../kernel/command.js'
import {
  Batch,
  compareChain,
  Iptables,
  isSameRule,
  type SavedTable,
  type Table,
} from '../../kernel/iptables.js'
import type { IpFamily } from '../../state/ip.js'
import { chainBatch, declared, jumps, wishFor, type ChainRule, type WrongJump } from './chains.js'
import { chainNames } from '../chain-names.js'
import { canLog } from '../refusal-log.js'
import type { ChainDifference } from '../reported-differences.js'
import { chains, setNameOf } from './names.js'
import { chainsIn, removeChains } from '../remove-chains.js'
import { rulesIn } from '../difference.js'

type Tool = Pick<Iptables, 'save' | 'restore' | 'hasAny' | 'supports'>

interface RuleDifferences {
  readonly lost: readonly string[]
  readonly changed: readonly ChainDifference[]
}

/** Writes, reads and removes the fixed iptables rules in the kernel. */
export class Rules {
  readonly #open: (family: IpFamily) => Promise<Tool>
  /** Kept, because it takes nine programs to find out which iptables a node uses. */
  readonly #tools = new Map<IpFamily, Tool>()

  constructor(
    open = (family: IpFamily): Promise<Tool> =>
      Iptables.open({ family, chainNames, sought: jumps }),
  ) {
    this.#open = open
  }

  /** Writes all rules and the missing jumps in one restore. Returns the number of bytes. */
  write(family: IpFamily, rules: readonly ChainRule[]): Promise<number> {
    return asKernelError(`write ${family} rules`, async () => {
      const tool = await this.#tool(family)
      // Where not all of a table can be read, the jumps have to do.
      const saved = await tool.save(undefined, () => true)
      const batch = chainBatch(rules, wrongJumps(saved))
      // The same restore removes chains of iptables mode, so packets meet all old or all new rules.
      removeChains(batch, saved, chainsIn(saved, isOfIptablesMode))
      const text = batch.toString()
      await tool.restore(text)
      return text.length
    })
  }

  /** Whether rules can log to this program. The answer is the same for both IP families. */
  canLog(): Promise<boolean> {
    return asKernelError('try to log packets', async () => canLog(await this.#tool('IPv4')))
  }

  /** Every table of the family, with the rules of all programs. */
  read(family: IpFamily): Promise<readonly SavedTable[]> {
    return asKernelError(`read ${family} rules`, async () => (await this.#tool(family)).save())
  }

  /** The chains that are gone or do not have one jump each, and those with other rules than the planned ones. */
  differences(family: IpFamily, rules: readonly ChainRule[]): Promise<RuleDifferences> {
    return asKernelError(`read ${family} rules`, async () => {
      const saved = await (await this.#tool(family)).save()
      const lost = wrongJumps(saved).map(({ chain }) => chain)
      const changed: ChainDifference[] = []
      for (const [table, chain] of declared) {
        const present = rulesIn(saved, table, chain)
        const wish = wishFor(rules, table, chain)
        if (!present) lost.push(chain)
        else if (compareChain(wish, present).length > 0) {
          const difference = { chain: `${table} ${chain}`, what: 'has other rules' }
          const mayBeWording = present.length === wish.rules.length
          changed.push({ ...difference, fingerprint: present.join('\n'), mayBeWording })
        }
      }
      return { lost, changed }
    })
  }

  /**
   * Removes the chains and the jumps to them. Iptables mode has chains with some of these names.
   * Such a chain is removed only if this mode wrote it last: then a rule in KUBE-SERVICES names an
   * ipset.
   */
  remove(family: IpFamily): Promise<boolean> {
    return asKernelError(`remove ${family} rules`, async () => {
      const tool = await this.#tool(family)
      if (!(await tool.hasAny(onlyOurs))) return false
      const saved = await tool.save()
      const services = rulesIn(saved, 'nat', chains.services)
      // Without KUBE-SERVICES no mode uses the shared chains, so they go with any other chain of
      // ours.
      const isWriter = services
        ? services.some((text) => text.includes(setNameOf(family, 'KUBE-CLUSTER-IP')))
        : declared.some(
            ([table, chain]) => !sharedChains.includes(chain) && rulesIn(saved, table, chain),
          )
      const doomed = declared.filter(
        ([table, chain]) =>
          rulesIn(saved, table, chain) && (isWriter || !sharedChains.includes(chain)),
      )
      const batch = new Batch()
      removeChains(batch, saved, doomed)
      if (!isWriter) removeOwnJumps(batch, saved)
      await tool.restore(batch)
      return batch.size > 0
    })
  }

  async #tool(family: IpFamily): Promise<Tool> {
    const known = this.#tools.get(family)
    if (known) return known
    const tool = await this.#open(family)
    this.#tools.set(family, tool)
    return tool
  }
}

/** Chains that iptables mode has, too, with the same names. */
const sharedChains: readonly string[] = [
  chains.services,
  chains.postrouting,
  chains.markMasquerade,
  chains.forward,
  chains.firewall,
]

/** Chains that only this mode has. One restore writes them together with the shared ones. */
const onlyOurs = declared.filter(([, chain]) => !sharedChains.includes(chain))

/**
 * Only iptables mode has KUBE-SERVICES in filter: it refuses packets to Services without endpoints.
 */
const isRejectChain = (table: Table, name: string) => table === 'filter' && name === chains.services

/** Whether only iptables mode has the chain, ours or upstream's. An earlier run may have left it. */
const isOfIptablesMode = (table: Table, name: string) =>
  iptablesModeChain.test(name) || isRejectChain(table, name)

const iptablesModeChain =
  /^KUBE-((SVC|SVL|EXT|FW|SEP)-[A-Z2-7]{16}|NODEPORTS|EXTERNAL-SERVICES|PROXY-CANARY)$/

/** Removes this mode's jumps to shared chains in filter. Those of iptables mode look different. */
function removeOwnJumps(batch: Batch, saved: readonly SavedTable[]): void {
  for (const { table, chain, to, rule } of jumps) {
    if (table !== 'filter' || !sharedChains.includes(to)) continue
    for (const text of rulesIn(saved, table, chain) ?? []) {
      if (isSameRule(text, rule.text)) batch.deleteSaved(table, chain, text)
    }
  }
}

/** The jumps that are missing, or there more than once, with what is there. */
function wrongJumps(saved: readonly SavedTable[]): readonly WrongJump[] {
  return jumps
    .map((jump) => {
      const present = rulesIn(saved, jump.table, jump.chain) ?? []
      return { ...jump, present: present.filter((text) => isSameRule(text, jump.rule.text)) }
    })
    .filter(({ present }) => present.length !== 1)
}

async function asKernelError<T>(action: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    throw kernelError(error, action)
  }
}
