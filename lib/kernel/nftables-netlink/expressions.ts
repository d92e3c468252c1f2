import type { MessageWriter } from '../netlink/message-writer.js'
import { sourceSeed } from '../jenkins-hash.js'
import type { Draw, Field, NftFamily, Verdict } from '../nftables/model.js'
import { checkedName } from '../nftables/identifiers.js'
import {
  datum,
  expressionAttributes,
  listItem,
  registerAt,
  verdictCodes,
  verdictRegister,
} from './protocol.js'
import { addressLength } from './values.js'

/** The kernel's instructions, each under its own name. Registers are explained in protocol.ts. */

const bases = { network: 1, transport: 2 } as const
const comparisons = { equal: 0, notEqual: 1 } as const
export const metaKeys = { mark: 3, inputInterface: 6, l4proto: 16 } as const
export const connectionKeys = { state: 0, status: 2 } as const
const fibFlags = { saddr: 1, daddr: 2 } as const
const fibAddressType = 3
const numbers = { turn: 0, chance: 1 } as const
const jenkins = 0
const destinationNat = 1
const portGiven = 2
const fullyRandom = 0x10
const updateElement = 1
const destinationPortOffset = 2
const invertLookup = 1
/** The source address is loaded behind the register that gets its hash. */
const sourceOffset = 16

function expression(
  message: MessageWriter,
  name: string,
  attributes: (message: MessageWriter) => void,
): void {
  message.nest(listItem, (item) => {
    item.string(expressionAttributes.name, name)
    item.nest(expressionAttributes.data, attributes)
  })
}

export function loadAddress(
  message: MessageWriter,
  family: NftFamily,
  field: 'saddr' | 'daddr',
  { offset = 0, length = addressLength(family) }: { offset?: number; length?: number } = {},
): void {
  const source = family === 'ip' ? 12 : 8
  const at = field === 'saddr' ? source : source + addressLength(family)
  loadPayload(message, { register: registerAt(offset), base: bases.network, at, length })
}

/**
 * Loads fields side by side, as the key of a set of that shape; the key starts in register 1.
 * Returns the register behind it.
 */
export function loadFields(
  message: MessageWriter,
  family: NftFamily,
  fields: readonly Field[],
): number {
  let offset = 0
  for (const field of fields) {
    if (field === 'l4proto') loadMeta(message, metaKeys.l4proto, registerAt(offset))
    else if (field === 'dport') {
      loadPayload(message, {
        register: registerAt(offset),
        base: bases.transport,
        at: destinationPortOffset,
        length: 2,
      })
    } else loadAddress(message, family, field, { offset })
    offset += field === 'saddr' || field === 'daddr' ? addressLength(family) : 4
  }
  return registerAt(offset)
}

function loadPayload(
  message: MessageWriter,
  load: { register: number; base: number; at: number; length: number },
): void {
  expression(message, 'payload', (data) =>
    data.be32(1, load.register).be32(2, load.base).be32(3, load.at).be32(4, load.length),
  )
}

export function loadMeta(message: MessageWriter, key: number, register = 1): void {
  expression(message, 'meta', (data) => data.be32(2, key).be32(1, register))
}

export function setMark(message: MessageWriter): void {
  expression(message, 'meta', (data) => data.be32(2, metaKeys.mark).be32(3, 1))
}

export function loadConnection(message: MessageWriter, key: number): void {
  expression(message, 'ct', (data) => data.be32(2, key).be32(1, 1))
}

export function loadAddressType(message: MessageWriter, field: 'saddr' | 'daddr'): void {
  expression(message, 'fib', (data) =>
    data.be32(3, fibFlags[field]).be32(2, fibAddressType).be32(1, 1),
  )
}

/** Loads a number less than `below`. A hash of the source needs registers 1 and 2. */
export function loadNumber(
  message: MessageWriter,
  family: NftFamily,
  below: number,
  {
    by = 'chance',
    register = 1,
  }: { readonly by?: Draw | undefined; readonly register?: number } = {},
): void {
  if (by === 'source') {
    loadAddress(message, family, 'saddr', { offset: sourceOffset })
    expression(message, 'hash', (data) =>
      data
        .be32(1, registerAt(sourceOffset))
        .be32(2, 1)
        .be32(3, addressLength(family))
        .be32(4, below)
        .be32(5, sourceSeed)
        .be32(7, jenkins),
    )
    return
  }
  expression(message, 'numgen', (data) =>
    data.be32(1, register).be32(2, below).be32(3, numbers[by]).be32(4, 0),
  )
}

/** register 1 = (register 1 & mask) ^ flip */
export function bitwise(message: MessageWriter, mask: Uint8Array, flip: Uint8Array): void {
  expression(message, 'bitwise', (data) => {
    data.be32(1, 1).be32(2, 1).be32(3, mask.length)
    data.nest(4, (value) => value.bytes(datum.value, mask))
    data.nest(5, (value) => value.bytes(datum.value, flip))
  })
}

export function compare(message: MessageWriter, not: boolean, value: Uint8Array): void {
  expression(message, 'cmp', (data) => {
    data.be32(1, 1).be32(2, not ? comparisons.notEqual : comparisons.equal)
    data.nest(3, (nested) => nested.bytes(datum.value, value))
  })
}

interface Lookup {
  /** A name, or the template of an anonymous set. */
  readonly set: string
  /** Distinguishes sets of one transaction that have the same template. */
  readonly id?: number
  readonly not?: boolean
  /** The register for the value of a map; 0 is the register of verdicts. */
  readonly into?: number
}

export function lookUp(message: MessageWriter, { set, id, not, into }: Lookup): void {
  expression(message, 'lookup', (data) => {
    data.be32(2, 1)
    if (into !== undefined) data.be32(3, into)
    data.string(1, set)
    if (id !== undefined) data.be32(4, id)
    if (not) data.be32(5, invertLookup)
  })
}

export function remember(message: MessageWriter, set: string): void {
  expression(message, 'dynset', (data) => data.string(1, set).be32(3, updateElement).be32(4, 1))
}

export function immediateValue(message: MessageWriter, register: number, value: Uint8Array): void {
  expression(message, 'immediate', (data) => {
    data.be32(1, register)
    data.nest(2, (nested) => nested.bytes(datum.value, value))
  })
}

export function immediateVerdict(message: MessageWriter, verdict: Verdict): void {
  expression(message, 'immediate', (data) => {
    data.be32(1, verdictRegister)
    data.nest(2, (nested) => writeVerdict(nested, verdict))
  })
}

export function writeVerdict(message: MessageWriter, verdict: Verdict): void {
  message.nest(datum.verdict, (nested) => {
    nested.be32(datum.verdictCode, verdictCodes[verdict.to])
    if ('chain' in verdict) nested.string(datum.verdictChain, checkedName(verdict.chain))
  })
}

/** Destination NAT to the address in register 1 and the port in the register after it. */
export function destinationTo(
  message: MessageWriter,
  family: NftFamily,
  { port, isFixed }: { readonly port: number; readonly isFixed: boolean },
): void {
  expression(message, 'nat', (data) => {
    data.be32(1, destinationNat).be32(2, family === 'ip' ? 2 : 10)
    data.be32(3, 1).be32(5, port)
    if (isFixed) data.be32(7, portGiven)
  })
}

export function masquerade(message: MessageWriter): void {
  expression(message, 'masq', (data) => data.be32(1, fullyRandom))
}

/** Logs the packet to a group of nfnetlink_log. */
export function log(
  message: MessageWriter,
  { group, prefix }: { readonly group: number; readonly prefix?: string },
): void {
  expression(message, 'log', (data) => {
    data.be16(1, group)
    if (prefix !== undefined) data.string(2, prefix)
  })
}

/** Answers with ICMP port unreachable. */
export function reject(message: MessageWriter, family: NftFamily): void {
  expression(message, 'reject', (data) => data.be32(1, 0).u8(2, family === 'ip' ? 3 : 4))
}
