import { pause } from '../../async.js'
import { accounts } from './names.js'
import { messageOf } from '../../errors.js'
import type { Log, ModeContext } from '../mode.js'
import type { PacketAccounts } from '../../kernel/nfacct.js'

/** The metric of each nfacct object (IT10, IT25). */
const metrics = [
  [accounts.invalidDropped, 'iptables_ct_state_invalid_dropped_packets_total'],
  [accounts.localhostNodePorts, 'iptables_localhost_nodeports_accepted_packets_total'],
] as const

/** The interval is shorter than metrics are usually read. A reading is one request per object. */
const everyMs = 5000

/** Copies the packet counts of the kernel to /metrics. */
export class PacketCounters {
  readonly #accounts: PacketAccounts
  readonly #context: Pick<ModeContext, 'log' | 'meter'>
  readonly #seen = new Map<string, bigint>()

  constructor(packetAccounts: PacketAccounts, context: Pick<ModeContext, 'log' | 'meter'>) {
    this.#accounts = packetAccounts
    this.#context = context
  }

  async run(signal: AbortSignal): Promise<void> {
    try {
      while (!signal.aborted) {
        this.read()
        await pause(everyMs, signal)
      }
    } catch (error) {
      const fields = { error: messageOf(error) }
      this.#context.log.warn(fields, 'cannot read the packet counters any more')
    }
  }

  /** The objects survive a restart, so the first reading brings all they have counted. */
  read(): void {
    for (const [object, metric] of metrics) {
      const now = this.#accounts.packets(object) ?? 0n
      const before = this.#seen.get(object) ?? 0n
      // A smaller number means that another program has created the object again.
      this.#context.meter.count(metric, {}, Number(now < before ? now : now - before))
      this.#seen.set(object, now)
    }
  }

  close(): void {
    this.#accounts.close()
  }
}

/** Opens the objects with which our rules count; undefined if the kernel has none. */
export async function ensureAccounts(
  open: () => Promise<PacketAccounts>,
  log: Log,
): Promise<PacketAccounts | undefined> {
  let opened: PacketAccounts | undefined
  try {
    opened = await open()
    createAccounts(opened)
    return opened
  } catch (error) {
    opened?.close()
    log.debug({ reason: messageOf(error) }, 'no nfacct objects, so two metrics stay at zero')
    return undefined
  }
}

/** Rules that count with an object which `kube-proxy cleanup` has removed are refused. */
export function createAccounts(packetAccounts: PacketAccounts): void {
  for (const name of Object.values(accounts)) packetAccounts.ensure(name)
}
