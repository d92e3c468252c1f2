import { KernelError } from '../../errors.js'
import { addressText, ipHeader } from '../../kernel/addresses.js'
import { parseRule, type Iptables, type SavedTable } from '../../kernel/iptables.js'
import type { IpFamily } from '../../state/ip.js'
import type { LoggedPacket } from '../../kernel/packet-log.js'
import type { TracedPacket, TraceEvent } from './events.js'

const tracePrefix = /^TRACE: (\w+):(.+):(rule|return|policy):(\d+) *$/
/** The most packets to keep that may still open a connection. */
const maximumWaiting = 1000
const verdicts: Readonly<Record<string, string>> = {
  ACCEPT: 'accept',
  DROP: 'drop',
  RETURN: 'return',
}

/** The rules by number, as the tracing of ip_tables names them. */
export class LegacyRules {
  readonly #tables: readonly SavedTable[]
  readonly #family: string
  readonly #met = new Set<string>()
  /** Events of packets that have not reached table nat yet, by packet. */
  readonly #waiting = new Map<string, TraceEvent[]>()
  readonly #opening = new Set<string>()

  constructor(tables: readonly SavedTable[], family: IpFamily) {
    this.#tables = tables
    this.#family = family === 'IPv4' ? 'ip' : 'ip6'
  }

  /** New events of packets that open a connection; only those reach table nat. */
  events(packet: LoggedPacket, comment: string): readonly TraceEvent[] {
    const told = this.#read(packet, comment)
    const [{ id, table } = { id: '', table: '' }] = told
    if (told.length === 0 || this.#opening.has(id)) return told
    const waiting = [...(this.#waiting.get(id) ?? []), ...told]
    this.#waiting.delete(id)
    if (table.endsWith(' nat')) {
      this.#opening.add(id)
      return waiting
    }
    this.#waiting.set(id, waiting)
    const [oldest] = this.#waiting.keys()
    if (this.#waiting.size > maximumWaiting && oldest !== undefined) this.#waiting.delete(oldest)
    return []
  }

  /** Throws when a chain has changed, because its numbers then mean other rules. */
  async check(iptables: Iptables): Promise<void> {
    const now = await iptables.save()
    const changed = [...this.#met].find((place) => {
      const [table = '', chain = ''] = place.split(' ')
      const rules = (tables: readonly SavedTable[]) => JSON.stringify(chainOf(tables, table, chain))
      return rules(now) !== rules(this.#tables)
    })
    if (changed === undefined) return
    throw new KernelError(
      'busy',
      `follow packets: ${changed} has changed during the trace, so its rules cannot be found by number; try again`,
    )
  }

  #read({ prefix, inInterface, outInterface, bytes }: LoggedPacket, comment: string): TraceEvent[] {
    const [, table = '', chain = '', kind = '', number = ''] = tracePrefix.exec(prefix) ?? []
    const header = packetHeader(bytes)
    if (table === '' || !header) return []
    const { id, ...ends } = header
    const common = { id, table: `${this.#family} ${table}`, chain }
    const rules = chainOf(this.#tables, table, chain)
    const rule = kind === 'rule' ? (rules?.rules[Number(number) - 1] ?? '') : ''
    if (rule.includes(comment)) return []
    this.#met.add(`${table} ${chain}`)
    const seen: TraceEvent = {
      ...common,
      kind: 'packet',
      packet: { ...ends, inInterface, outInterface },
    }
    if (kind === 'rule') {
      return [seen, { ...common, kind: 'rule', rule, verdict: this.#verdictOf(table, rule) }]
    }
    if (kind === 'return') return [seen]
    return [seen, { ...common, kind: 'end', verdict: rules?.policy.toLowerCase() ?? '' }]
  }

  #verdictOf(table: string, rule: string): string {
    const { jump, goto = '' } = parseRule(rule)
    const target = jump ?? goto
    if (chainOf(this.#tables, table, target)) {
      return `${jump === undefined ? 'goto' : 'jump'} ${target}`
    }
    return verdicts[target] ?? 'continue'
  }
}

function chainOf(tables: readonly SavedTable[], table: string, chain: string) {
  return tables.find((each) => each.table === table)?.chains.get(chain)
}

/** The fields that identify a packet while rules rewrite it. */
interface PacketHeader extends Omit<TracedPacket, 'inInterface' | 'outInterface'> {
  readonly id: string
}

const withPorts = new Set([6, 17, 132])

/** Reads addresses and ports; undefined for packets without ports or cut too short. */
export function packetHeader(bytes: Buffer): PacketHeader | undefined {
  const header = ipHeader(bytes)
  if (!header) return undefined
  const { family, length } = header
  const isV4 = family === 'IPv4'
  if (bytes.length < length + 8 || !withPorts.has(bytes[isV4 ? 9 : 6] ?? 0)) return undefined
  const source = addressText(family, bytes, isV4 ? 12 : 8)
  const destination = addressText(family, bytes, isV4 ? 16 : 24)
  const [sourcePort, destinationPort] = [bytes.readUInt16BE(length), bytes.readUInt16BE(length + 2)]
  // The source is part of the id, because the kernel rewrites it only after the last rule.
  const number = isV4 ? bytes.readUInt16BE(4) : bytes.readUInt32BE(length + 4)
  return {
    ...{ source, destination, sourcePort, destinationPort },
    id: `${source} ${sourcePort} ${number}`,
  }
}
