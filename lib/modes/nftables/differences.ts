import { counted } from '../../state/names.js'
import { KernelError } from '../../errors.js'
import type {
  ListedChain,
  ListedElements,
  ListedRule,
  RulesetReader,
} from '../../kernel/nftables/reader.js'
import { hookText, setForm } from '../../kernel/nftables/text.js'
import { ruleText, targetText, verdictText } from '../../kernel/nftables/text-statements.js'
import type { Chain, Element, NftSet, TableRef } from '../../kernel/nftables/model.js'
import { missingPlace, ownerText, type Difference } from '../difference.js'
import type { Place } from '../../kernel/place.js'
import { elementsWith, tableElements } from './elements.js'
import type { NftablesPlan } from './plan.js'

export interface ComparisonDeps {
  readonly reader: RulesetReader
  /** Lets other work run. */
  readonly pause: () => Promise<void>
  /** The rules of a chain as the kernel's tool prints them; undefined where there is no tool. */
  readonly show?: (chain: string) => Promise<readonly string[] | undefined>
}

/** A whole cluster takes long to compare, so other work runs after so many chains. */
const stepSize = 200

export interface PartDifference extends Difference {
  /** The key of the part of the plan; undefined for what no part wants. */
  readonly key: string | undefined
  readonly isHarmless?: true
}

/**
 * Everything of our table that is not as the plan wants. Each difference is yielded when it is found,
 * so a caller that needs only the first can stop there. Chains that neither a jump nor a hook leads to
 * do no harm and come last.
 */
export async function* nftablesDifferences(
  plan: NftablesPlan,
  deps: ComparisonDeps,
): AsyncGenerator<PartDifference> {
  const listed = await deps.reader.chains(plan.table)
  if (listed.size === 0) {
    yield { ...missingPlace(tablePlace(plan.table), ''), key: '' }
    return
  }
  if (await deps.reader.isDormant(plan.table)) {
    yield unwanted(tablePlace(plan.table), 'flags dormant', '')
  }
  for (const [name, { policy }] of listed) {
    if (policy === 'drop') yield unwanted(chainPlace(name), 'policy drop', '')
  }
  const wanted = new Set<string>()
  let compared = 0
  for (const [key, part] of plan.parts) {
    for (const chain of part.chains) {
      wanted.add(chain.name)
      const there = listed.get(chain.name)
      if (there?.hasFormOf(chain) === false) {
        yield otherForm(chainPlace(chain.name), hookText(chain) ?? 'no hook', key)
      }
      yield* chainDifferences(plan, chain, { deps, there: there?.rules, key })
      if (++compared % stepSize === 0) await deps.pause()
    }
  }
  yield* elementDifferences(plan, deps)
  const surplus = [...listed].filter(([name]) => !wanted.has(name))
  const isHarmful = ([, { policy, rules }]: (typeof surplus)[number]) =>
    policy !== undefined && rules.length > 0
  for (const one of surplus) if (isHarmful(one)) yield surplusChain(one, '')
  for (const one of surplus) {
    if (!isHarmful(one)) yield { ...surplusChain(one, undefined), isHarmless: true }
  }
}

function otherForm(place: Place, expected: string, key: string): PartDifference {
  const found = `another form of this ${place.kind}`
  return { place, expected, found, owner: ownerText(key), key }
}

function unwanted(place: Place, found: string, key: string | undefined): PartDifference {
  return { place, expected: undefined, found, owner: '', key }
}

function surplusChain([name, { rules }]: readonly [string, ListedChain], key: string | undefined) {
  const found = `a chain of ${counted(rules.length, 'rule')} that nothing here asks for`
  return unwanted(chainPlace(name), found, key)
}

interface ChainThere {
  readonly deps: ComparisonDeps
  readonly there: readonly ListedRule[] | undefined
  /** The key of the part that the chain belongs to. */
  readonly key: string
}

async function* chainDifferences(
  { table }: NftablesPlan,
  { name, rules }: Chain,
  { deps, there, key }: ChainThere,
): AsyncGenerator<PartDifference> {
  const owner = ownerText(key)
  const place = chainPlace(name)
  const texts = () => rules.map((rule) => ruleText(table.family, rule))
  if (!there) {
    yield { ...missingPlace(place, owner), key }
    for (const text of texts()) yield { place, expected: text, found: undefined, owner, key }
    return
  }
  if (there.length === rules.length && rules.every((rule, index) => there[index]?.isLike(rule))) {
    return
  }
  const shown = await deps.show?.(name)
  const left = new Map(there.entries())
  const missing = rules.filter((rule) => {
    for (const [index, one] of left) if (one.isLike(rule)) return !left.delete(index)
    return true
  })
  for (const rule of missing) {
    yield { place, expected: ruleText(table.family, rule), found: undefined, owner, key }
  }
  for (const index of left.keys()) {
    const found = shown?.[index] ?? `rule ${index + 1} of the chain`
    yield { place, expected: undefined, found, owner, key }
  }
  if (missing.length > 0 || left.size > 0) return
  const expected = texts().map((text, index) => `rule ${index + 1}: ${text}`)
  yield { place, expected: expected.join('\n'), found: 'these rules in another order', owner, key }
}

async function* elementDifferences(
  plan: NftablesPlan,
  { reader, pause }: ComparisonDeps,
): AsyncGenerator<PartDifference> {
  const wanted = new Map<string, Element[]>()
  /** The names of sets that lack elements. They may have others instead. */
  const incomplete = new Set<string>()
  const listed = yield* listedSets(plan, reader)
  let compared = 0
  for (const [key, elements] of wantedElements(plan)) {
    for (const element of elements) {
      const { set } = element
      const ofSet = wanted.get(set.name) ?? []
      ofSet.push(element)
      wanted.set(set.name, ofSet)
      const there = listed.get(set.name)?.there
      if (!there?.has(element)) {
        incomplete.add(set.name)
        const owner = ownerText(key)
        yield { place: setPlace(set), ...otherElement(element, there), owner, key }
      }
      if (++compared % (stepSize * 10) === 0) await pause()
    }
  }
  // Rules look packets up in these sets, so one element too many is a fault, too.
  for (const { set, there } of listed.values()) {
    const ofSet = wanted.get(set.name) ?? []
    if (there.size === ofSet.length && !incomplete.has(set.name)) continue
    for (const found of there.others(ofSet)) yield unwanted(setPlace(set), found, undefined)
  }
}

/** The elements of each request and each table, with the key of their part. */
function* wantedElements({
  requests,
  parts,
}: NftablesPlan): Generator<readonly [key: string, elements: readonly Element[]]> {
  for (const [first] of requests.values()) if (first) yield [first.owner, elementsWith(first)]
  for (const [key, { tables = [] }] of parts) {
    for (const table of tables) yield [key, tableElements(table)]
  }
}

/** An element that is missing, and what the kernel has in its place. */
function otherElement(element: Element, there: ListedElements | undefined) {
  const value = there?.valueAt(element)
  const found = value === undefined ? undefined : `${element.key.join(' . ')} : ${value}`
  return { expected: elementText(element), found }
}

interface SetThere {
  readonly set: NftSet
  readonly there: ListedElements
}

/** The sets that the kernel has, by name. One that it lacks is a difference. */
async function* listedSets(
  { table, parts }: NftablesPlan,
  reader: RulesetReader,
): AsyncGenerator<PartDifference, ReadonlyMap<string, SetThere>> {
  const listed = new Map<string, SetThere>()
  const forms = await reader.sets(table)
  for (const [key, { sets }] of parts) {
    for (const set of sets) {
      if (forms.get(set.name)?.hasFormOf(set) === false) {
        yield otherForm(setPlace(set), setForm(table, set), key)
      }
      // Sets of session affinity are left out: only the kernel knows the clients that it remembers.
      if (set.timeoutSeconds !== undefined) continue
      try {
        listed.set(set.name, { set, there: await reader.elements(table, set) })
      } catch (error) {
        if (!(error instanceof KernelError) || error.kind !== 'not-found') throw error
        yield { ...missingPlace(setPlace(set), ownerText(key)), key }
      }
    }
  }
  return listed
}

const tablePlace = ({ family, name }: TableRef): Place => ({
  kind: 'table',
  name: `${family} ${name}`,
})

export function chainPlace(name: string): Place {
  return { kind: 'chain', name }
}

export function setPlace({ name, holds }: NftSet): Place {
  return { kind: holds === 'keys' ? 'set' : 'map', name }
}

export function elementText({ key, verdict, target }: Element): string {
  const text = key.join(' . ')
  if (target) return `${text} : ${targetText(target)}`
  return verdict ? `${text} : ${verdictText(verdict)}` : text
}
