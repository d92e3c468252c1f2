import { accounted, bytecode, Iptables, isIptablesError, rule } from '../../kernel/iptables.js'
import { accounts, chains } from './names.js'
import { createAccounts, ensureAccounts } from './packet-counters.js'
import { FamilyRules } from './apply.js'
import { ForeignCommits } from '../foreign-commits.js'
import { placedJumps } from './fixed-rules.js'
import { canLog } from '../refusal-log.js'
import { chainNames } from '../chain-names.js'
import { warnOfOtherBackend } from '../other-backend.js'
import { waitForLock } from '../xtables-lock.js'
import { isShort } from '../../kernel/iptables/command.js'
import { kernelError } from '../../kernel/command.js'
import { messageOf } from '../../errors.js'
import type { Backend, Locked, OpenOptions, Run } from '../../kernel/iptables.js'
import type { IpFamily } from '../../state/ip.js'
import type { Log } from '../mode.js'
import type { PacketAccounts } from '../../kernel/nfacct.js'
import type { IptablesSettings } from './settings.js'
import type { KernelFacts } from './plan.js'

export interface OpenDeps {
  readonly run?: Run
  readonly backend?: Backend
  /** Opens the nfacct objects of iptables' network namespace. Throws if the kernel has none. */
  readonly openAccounts: () => Promise<PacketAccounts>
  /** Opens the count of nf_tables transactions of this namespace; undefined if there is none. */
  readonly openGeneration: () => Promise<(() => number) | undefined>
  /** A lock of another program is waited for only until then. */
  readonly hasEnded?: () => boolean
}

export interface Opened {
  readonly families: ReadonlyMap<IpFamily, FamilyRules>
  readonly facts: KernelFacts
  readonly foreign: ForeignCommits
  readonly accounts: PacketAccounts | undefined
}

/** Opens iptables for each family that has it. Throws if none has (IT49). */
export async function openFamilies(
  settings: () => IptablesSettings,
  families: readonly IpFamily[],
  log: Log,
  deps: OpenDeps,
): Promise<Opened> {
  const opened = new Map<IpFamily, FamilyRules>()
  const failures: unknown[] = []
  const syncPeriodMs = () => settings().syncPeriodMs
  const packetAccounts = await ensureAccounts(deps.openAccounts, log)
  // A sync waits for two periods before it fails.
  const hasEnded = deps.hasEnded ?? (() => false)
  const onLocked = waitForLock(log, () => (hasEnded() ? 0 : syncPeriodMs() * 2))
  let hasBpf = true
  let randomFully = true
  let hasAccounting = packetAccounts !== undefined
  // Each check starts a program. So the check for logging is made only if rules would log.
  let hasLog = settings().logsRefused
  let foreign: ForeignCommits | undefined
  for (const family of families) {
    try {
      const iptables = await openIptables(family, onLocked, deps)
      const { backend } = iptables.capabilities
      hasBpf &&= await supportsBpf(iptables)
      hasAccounting &&= await supportsAccounting(iptables)
      hasLog &&= await canLog(iptables)
      randomFully &&= iptables.capabilities.randomFully
      foreign ??= new ForeignCommits(backend === 'nft' ? await deps.openGeneration() : undefined)
      const prepare = () => packetAccounts && createAccounts(packetAccounts)
      const options = { iptables, log, foreign, prepare, retryMs: () => syncPeriodMs() * 0.9 }
      opened.set(family, new FamilyRules(options))
      log.info({ family, ...iptables.capabilities }, 'using iptables')
      await warnOfOtherBackend({ family, backend, chain: chains.services }, { log, run: deps.run })
    } catch (error) {
      // A family would stay out until the next start, which comes now instead.
      if (isShort(error)) throw kernelError(error, 'start iptables mode')
      failures.push(error)
      // IT49: the other family may still work.
      const hint = isIptablesError(error, 'missing') ? 'not installed' : messageOf(error)
      log.warn({ family, reason: hint }, 'no iptables for this IP family, leaving it out')
    }
  }
  if (opened.size === 0) {
    packetAccounts?.close()
    throw kernelError(failures[0], 'start iptables mode')
  }
  const facts = { hasBpf, hasAccounting, randomFully, hasLog }
  return {
    ...{ families: opened, facts, accounts: packetAccounts },
    foreign: foreign ?? new ForeignCommits(),
  }
}

async function openIptables(
  family: IpFamily,
  onLocked: (locked: Locked) => boolean,
  deps: OpenDeps,
): Promise<Iptables> {
  const { run, backend } = deps
  const iptables = await openPrograms({ family, backend, onLocked, run })
  await iptables.ready()
  return iptables
}

/** Opens the programs. They find jumps of this mode in chains that iptables cannot list, too. */
export function openPrograms(options: OpenOptions): Promise<Iptables> {
  // A `run` of the caller may look into another network namespace.
  const looking = options.run ? {} : { chainNames }
  return Iptables.open({ ...options, ...looking, sought: placedJumps })
}

export function supportsBpf(iptables: Iptables): Promise<boolean> {
  const matches = [bytecode([[6, 0, 0, 0]])]
  return iptables.supports('nat', rule({ matches, jump: 'RETURN' }))
}

function supportsAccounting(iptables: Iptables): Promise<boolean> {
  const matches = [accounted(accounts.invalidDropped)]
  return iptables.supports('filter', rule({ matches, jump: 'RETURN' }))
}
