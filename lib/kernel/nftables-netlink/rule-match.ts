import {
  forEachAttribute,
  forEachMessage,
  attributesOf,
  readString,
} from '../netlink/message-reader.js'
import type { NftFamily, Rule } from '../nftables/model.js'
import { datum, expressionAttributes, messages, ruleAttributes } from './protocol.js'
import { writeTransaction } from './transaction-writer.js'

const lookupSet = 1
const lookupSetId = 4
const immediateData = 2
const natFlags = 7

/**
 * Whether the kernel's expressions are those that we would write for a rule: the same instructions
 * in the same order, each with every attribute that we give it. The kernel adds attributes of its
 * own (counts, defaults). Names and elements of anonymous sets are not compared.
 */
export function isSameRule(family: NftFamily, rule: Rule, listed: Buffer): boolean {
  const [ours, theirs] = [instructionsOf(expectedExpressions(family, rule)), instructionsOf(listed)]
  return (
    ours.length === theirs.length &&
    ours.every(({ name, data }, index) => {
      const other = theirs[index]
      return other?.name === name && holds(name, data, other.data)
    })
  )
}

interface Instruction {
  readonly name: string
  readonly data: Buffer
}

function instructionsOf(expressions: Buffer): readonly Instruction[] {
  const instructions: Instruction[] = []
  forEachAttribute(expressions, 0, (_, start, end) => {
    const attributes = attributesOf(expressions.subarray(start, end))
    const name = attributes.get(expressionAttributes.name)
    const data = attributes.get(expressionAttributes.data) ?? Buffer.alloc(0)
    if (name) instructions.push({ name: readString(name), data })
  })
  return instructions
}

/** Whether each attribute of `ours` is in `theirs` with the same bytes. */
function holds(name: string, ours: Buffer, theirs: Buffer): boolean {
  const found = attributesOf(theirs)
  let same = true
  forEachAttribute(ours, 0, (type, start, end) => {
    const value = ours.subarray(start, end)
    const other = found.get(type)
    if (name === 'lookup' && type === lookupSetId) return
    if (name === 'lookup' && type === lookupSet && isAnonymous(value)) {
      same &&= other !== undefined && isAnonymous(other)
    } else if (name === 'nat' && type === natFlags) {
      // The kernel sets more flags by itself.
      const bits = value.readUInt32BE()
      same &&= other !== undefined && (other.readUInt32BE() & bits) === bits
    } else if (name === 'immediate' && type === immediateData) {
      same &&= other !== undefined && isSameDatum(value, other)
    } else same &&= other !== undefined && value.equals(other)
  })
  return same
}

/** Verdicts are nested twice, and the kernel leaves out the bit that says so. */
function isSameDatum(ours: Buffer, theirs: Buffer): boolean {
  const [verdict, other] = [ours, theirs].map((data) => attributesOf(data).get(datum.verdict))
  return verdict && other ? verdict.equals(other) : ours.equals(theirs)
}

const isAnonymous = (name: Buffer) => readString(name).startsWith('__')

function expectedExpressions(family: NftFamily, rule: Rule): Buffer {
  const table = { family, name: 'any', comment: '' }
  const { messages: written } = writeTransaction(
    { table, commands: [{ do: 'add-rule', chain: 'any', rule }] },
    () => '__map',
  )
  let expressions = Buffer.alloc(0)
  forEachMessage(written.finish(0), ({ type, payload }) => {
    if (type !== messages.newRule) return
    expressions = Buffer.from(attributesOf(payload, 4).get(ruleAttributes.expressions) ?? [])
  })
  return expressions
}
