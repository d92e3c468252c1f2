import { checkedInterface, checkedName, checkedPort } from '../nftables/identifiers.js'
import type { Action, L4Protocol, NftFamily, Prefix, Statement } from '../nftables/model.js'
import type { MessageWriter } from '../netlink/message-writer.js'
import * as code from './expressions.js'
import type { AnonymousSet } from './sets.js'
import { registerAt } from './protocol.js'
import { hostBytes } from '../netlink/protocol.js'
import { addressBytes, addressLength, numberBytes, protocolNumber } from './values.js'

const localAddress = 2
const connectionBits = { new: 8, dnat: 32 } as const
const interfaceNameLength = 16

/** The anonymous set that a statement needs. It has to be written before the statement's rule. */
export function anonymousSetOf(statement: Statement): AnonymousSet | undefined {
  if (statement.kind === 'random-verdict') return { kind: 'verdicts', of: statement.verdicts }
  if (statement.kind === 'dnat' && statement.targets.length > 1) {
    return { kind: 'targets', of: statement.targets }
  }
  if (statement.kind === 'address' && statement.cidrs.length > 1) {
    return { kind: 'prefixes', of: statement.cidrs }
  }
  return undefined
}

/** The name and the number of a statement's anonymous set. */
interface SetPlace {
  readonly set: string
  readonly id: number
}

/** Writes a statement's instructions. */
export function writeStatement(
  message: MessageWriter,
  family: NftFamily,
  statement: Statement,
  set: SetPlace | undefined,
): void {
  const zero = hostBytes(0)
  switch (statement.kind) {
    case 'address':
      if (set) {
        code.loadAddress(message, family, statement.field)
        code.lookUp(message, { ...set, not: statement.not })
      } else for (const cidr of statement.cidrs) writePrefix(message, family, statement, cidr)
      return
    case 'member':
      code.loadFields(message, family, statement.fields)
      code.lookUp(message, { set: checkedName(statement.set) })
      return
    case 'local':
      code.loadAddressType(message, statement.field)
      code.compare(message, false, hostBytes(localAddress))
      return
    case 'interface':
      code.loadMeta(message, code.metaKeys.inputInterface)
      code.compare(message, statement.not, interfaceBytes(statement))
      return
    case 'protocol':
      writeProtocol(message, statement.protocol)
      return
    case 'connection':
      code.loadConnection(message, code.connectionKeys[statement.is === 'new' ? 'state' : 'status'])
      code.bitwise(message, hostBytes(connectionBits[statement.is]), zero)
      code.compare(message, true, zero)
      return
    case 'mark-test':
      code.loadMeta(message, code.metaKeys.mark)
      code.bitwise(message, hostBytes(statement.bits), zero)
      code.compare(message, true, zero)
      return
    case 'mark-change': {
      const kept = statement.by === 'or' ? ~statement.bits : -1
      code.loadMeta(message, code.metaKeys.mark)
      code.bitwise(message, hostBytes(kept), hostBytes(statement.bits))
      code.setMark(message)
      return
    }
    default:
      writeAction(message, family, statement, set)
  }
}

function writeAction(
  message: MessageWriter,
  family: NftFamily,
  statement: Action,
  set: SetPlace | undefined,
): void {
  switch (statement.kind) {
    case 'verdict-map':
      code.loadFields(message, family, statement.fields)
      code.lookUp(message, { set: checkedName(statement.map), into: 0 })
      return
    case 'random-verdict':
      code.loadNumber(message, family, statement.verdicts.length, { by: statement.by })
      if (set) code.lookUp(message, { ...set, into: 0 })
      return
    case 'dnat':
      writeDnat(message, family, statement, set)
      return
    case 'dnat-by-map': {
      writeProtocol(message, statement.protocol)
      const register = code.loadFields(message, family, ['daddr', 'dport'])
      code.loadNumber(message, family, statement.choices, { register })
      writeDnatByMap(message, family, { set: checkedName(statement.map) })
      return
    }
    case 'dnat-by-source':
      writeProtocol(message, statement.protocol)
      code.loadNumber(message, family, statement.places, { by: 'source' })
      writeDnatByMap(message, family, { set: checkedName(statement.map) })
      return
    case 'masquerade':
      code.masquerade(message)
      return
    case 'remember':
      code.loadAddress(message, family, statement.field)
      code.remember(message, checkedName(statement.set))
      return
    case 'verdict':
      code.immediateVerdict(message, statement.verdict)
      return
    case 'reject':
      code.reject(message, family)
      return
    case 'log':
      code.log(message, statement)
  }
}

function writeProtocol(message: MessageWriter, protocol: L4Protocol): void {
  code.loadMeta(message, code.metaKeys.l4proto)
  code.compare(message, false, Uint8Array.of(protocolNumber(protocol)))
}

/**
 * Prefixes of whole bytes are compared as they are; others need a mask. nft does the same, so it
 * lists these rules like its own.
 */
function writePrefix(
  message: MessageWriter,
  family: NftFamily,
  { field, not }: { readonly field: 'saddr' | 'daddr'; readonly not: boolean },
  { network, prefix }: Prefix,
): void {
  const length = addressLength(family)
  const bits = BigInt(length * 8)
  if (prefix > 0 && prefix % 8 === 0) {
    const bytes = prefix / 8
    code.loadAddress(message, family, field, { length: bytes })
    code.compare(message, not, numberBytes(bytes, network >> (bits - BigInt(prefix))))
    return
  }
  const mask = ((1n << BigInt(prefix)) - 1n) << (bits - BigInt(prefix))
  code.loadAddress(message, family, field)
  code.bitwise(message, numberBytes(length, mask), Buffer.alloc(length))
  code.compare(message, not, numberBytes(length, network))
}

function writeDnat(
  message: MessageWriter,
  family: NftFamily,
  { targets, by }: Extract<Statement, { kind: 'dnat' }>,
  set: SetPlace | undefined,
): void {
  const [only] = targets
  if (set) {
    code.loadNumber(message, family, targets.length, { by })
    writeDnatByMap(message, family, set)
  } else if (only) {
    code.immediateValue(message, 1, addressBytes(family, only.ip))
    code.immediateValue(message, 2, numberBytes(2, BigInt(checkedPort(only.port))))
    code.destinationTo(message, family, { port: 2, isFixed: true })
  }
}

/** Sends to the map's entry for the key in the registers. */
function writeDnatByMap(
  message: MessageWriter,
  family: NftFamily,
  map: Pick<SetPlace, 'set'> | SetPlace,
): void {
  code.lookUp(message, { ...map, into: 1 })
  const port = registerAt(addressLength(family))
  code.destinationTo(message, family, { port, isFixed: false })
}

function interfaceBytes({
  name,
  prefix,
}: {
  readonly name: string
  readonly prefix: boolean
}): Buffer {
  const bytes = Buffer.from(checkedInterface(name))
  return prefix ? bytes : Buffer.concat([bytes], interfaceNameLength)
}
