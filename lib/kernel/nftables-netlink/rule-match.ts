import {
  forEachAttribute,
  forEachMessage,
  attributesOf,
  readString,
} from '../netlink/message-reader.js'
import type { NftFamily, Rule } from '../nftables/model.js'
import {
  datum,
  elementListAttributes,
  expressionAttributes,
  genericBytes,
  messages,
  ruleAttributes,
} from './protocol.js'
import { elementsIn, type ListedElement } from './sets.js'
import { writeTransaction } from './transaction-writer.js'

const lookupSet = 1
const lookupSetId = 4
const lookupFlags = 5
const immediateData = 2
const natFlags = 7

/** The expressions of a rule, and the elements of the anonymous sets that they name. */
interface ListedExpressions {
  readonly expressions: Buffer
  readonly sets: ReadonlyMap<string, readonly ListedElement[]>
}

/**
 * Whether the kernel's expressions are those that we would write for a rule: the same instructions
 * in the same order, each with every attribute that we give it. The kernel adds attributes of its
 * own (counts, defaults). It gives an anonymous set a name of its own, so elements are compared.
 */
export function isSameRule(family: NftFamily, rule: Rule, listed: ListedExpressions): boolean {
  const expected = expectedExpressions(family, rule)
  const [ours, theirs] = [expected, listed].map(({ expressions }) => instructionsOf(expressions))
  const isSameSet = (name: string, other: string) =>
    isAnonymous(other) && setText(expected.sets.get(name)) === setText(listed.sets.get(other))
  return (
    ours?.length === theirs?.length &&
    ours?.every(({ name, data }, index) => {
      const other = theirs?.[index]
      return other?.name === name && holds(name, { ours: data, theirs: other.data }, isSameSet)
    }) === true
  )
}

/** The names of the anonymous sets in a rule's expressions. */
export function anonymousSetsIn(expressions: Buffer): readonly string[] {
  return instructionsOf(expressions).flatMap(({ name, data }) => {
    const set = name === 'lookup' ? attributesOf(data).get(lookupSet) : undefined
    return set && isAnonymous(readString(set)) ? [readString(set)] : []
  })
}

/** The same text for the same elements, which the kernel lists in any order. */
function setText(elements: readonly ListedElement[] = []): string {
  return elements
    .map(({ key, isEnd, verdict, target }) =>
      JSON.stringify([key, isEnd, verdict, target?.toString('latin1')]),
    )
    .sort()
    .join()
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
function holds(
  name: string,
  { ours, theirs }: { readonly ours: Buffer; readonly theirs: Buffer },
  isSameSet: (name: string, other: string) => boolean,
): boolean {
  const found = attributesOf(theirs)
  // Without flags a look-up is not inverted. The kernel always writes them.
  let same = name !== 'lookup' || flagsOf(ours) === flagsOf(theirs)
  forEachAttribute(ours, 0, (type, start, end) => {
    const value = ours.subarray(start, end)
    const other = found.get(type)
    if (name === 'lookup' && type === lookupSetId) return
    if (name === 'lookup' && type === lookupSet && isAnonymous(readString(value))) {
      same &&= other !== undefined && isSameSet(readString(value), readString(other))
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

const flagsOf = (lookup: Buffer) => attributesOf(lookup).get(lookupFlags)?.readUInt32BE() ?? 0

/** Verdicts are nested twice, and the kernel leaves out the bit that says so. */
function isSameDatum(ours: Buffer, theirs: Buffer): boolean {
  const [verdict, other] = [ours, theirs].map((data) => attributesOf(data).get(datum.verdict))
  return verdict && other ? verdict.equals(other) : ours.equals(theirs)
}

const isAnonymous = (name: string) => name.startsWith('__')

function expectedExpressions(family: NftFamily, rule: Rule): ListedExpressions {
  const table = { family, name: 'any', comment: '' }
  let number = 0
  const { messages: written } = writeTransaction(
    { table, commands: [{ do: 'add-rule', chain: 'any', rule }] },
    () => `__map${++number}`,
  )
  let expressions = Buffer.alloc(0)
  const sets = new Map<string, readonly ListedElement[]>()
  forEachMessage(written.finish(0), ({ type, payload }) => {
    const attributes = attributesOf(payload, genericBytes)
    if (type === messages.newRule) {
      expressions = Buffer.from(attributes.get(ruleAttributes.expressions) ?? [])
    } else if (type === messages.newElement) {
      const name = readString(attributes.get(elementListAttributes.set) ?? Buffer.alloc(0))
      sets.set(name, [...(sets.get(name) ?? []), ...elementsIn(payload)])
    }
  })
  return { expressions, sets }
}
