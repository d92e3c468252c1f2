import { attributesOf } from '../netlink/message-reader.js'
import { MessageWriter } from '../netlink/message-writer.js'
import { headerBytes } from '../netlink/protocol.js'
import type { Chain, NftFamily, NftSet } from '../nftables/model.js'
import { chainAttributes, setAttributes } from './protocol.js'
import { writeSet } from './sets.js'
import { writeChain } from './transaction-writer.js'

/** The attributes of a chain or set, as the kernel tells them. */
export type Attributes = ReadonlyMap<number, Buffer>

/** What decides about packets. */
export const chainForm: readonly number[] = [chainAttributes.hook, chainAttributes.type]
export const setForm: readonly number[] = [
  ...[setAttributes.flags, setAttributes.keyType, setAttributes.keyLength],
  ...[setAttributes.dataType, setAttributes.timeout],
  // Ours have none. With a limit a lookup finds an element only so often.
  ...[setAttributes.expression, setAttributes.expressions],
]
/** A comment is in the user data. It decides nothing, but a full write keeps it. */
const wholeChain = [...chainForm, chainAttributes.userData]
const wholeSet = [...setForm, setAttributes.userData]

/** Whether the kernel's chain is as this one, or there is none. */
export function isSameChain(
  chain: Chain,
  there: Attributes | undefined,
  compared: readonly number[] = wholeChain,
): boolean {
  if (!there) return true
  const has = attributesWritten((message) => writeChain(message, chain))
  return haveSame(compared, has, there)
}

/** Whether the kernel's set is as this one, or there is none. */
export function isSameSet(
  family: NftFamily,
  set: NftSet,
  there: Attributes | undefined,
  compared: readonly number[] = wholeSet,
): boolean {
  if (!there) return true
  const has = attributesWritten((message) => writeSet(message, family, set))
  if (!haveSame(compared, has, there)) return false
  const description = attributesOf(there.get(setAttributes.description) ?? Buffer.alloc(0))
  const size = description.get(sizeInDescription)
  return !size || (set.timeoutSeconds !== undefined && size.readUInt32BE() === sizeByRules)
}

/** NFTA_SET_DESC_SIZE */
const sizeInDescription = 1
/** The kernel gives this size to a set to which rules add elements. Other sets have none. */
const sizeByRules = 65_535

function attributesWritten(write: (message: MessageWriter) => void): Attributes {
  return attributesOf(new MessageWriter(512).message(0, 0, write).finish(0), headerBytes)
}

/** The kernel leaves out flags that are all zero. */
export const zero = Buffer.alloc(4)

function haveSame(attributes: readonly number[], one: Attributes, other: Attributes): boolean {
  return attributes.every((attribute) =>
    (one.get(attribute) ?? zero).equals(other.get(attribute) ?? zero),
  )
}
