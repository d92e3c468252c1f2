import { isAlias, isMap, isNode, isPair, isScalar, isSeq } from 'yaml'
import type { Alias, Pair, YAMLMap } from 'yaml'
import { ConfigError } from '../errors.js'
import { quote } from './settings.js'

/** The longest text that all aliases of a file may stand for together. Few files have any. */
const longest = 10_000

interface Meaning {
  readonly node: unknown
  /** The characters of its text, with those that its own aliases stand for. */
  readonly length: number
}

/**
 * Puts nodes in the place of their aliases (`*a`), and pairs in the place of merge keys (`<<`). A
 * node stays where it is written, for messages. Throws ConfigError.
 */
export class AliasExpander {
  readonly #place: (node: unknown) => string
  /** By anchor; undefined while its node is being read. */
  readonly #meanings = new Map<string, Meaning | undefined>()
  /** The characters that the aliases until here stand for. */
  #length = 0

  constructor(place: (node: unknown) => string) {
    this.#place = place
  }

  expand(node: unknown): unknown {
    if (isAlias(node)) return this.#meant(node)
    const before = this.#length
    const anchor = isNode(node) ? node.anchor : undefined
    if (anchor !== undefined) this.#meanings.set(anchor, undefined)
    if (isPair(node)) {
      node.key = this.expand(node.key)
      node.value = this.expand(node.value)
    } else if (isSeq(node)) node.items = node.items.map((item) => this.expand(item))
    else if (isMap(node)) this.#expandMap(node)
    if (anchor !== undefined && isNode(node)) {
      const [start = 0, end = 0] = node.range ?? []
      this.#meanings.set(anchor, { node, length: end - start + this.#length - before })
    }
    return node
  }

  #meant(alias: Alias): unknown {
    const { source } = alias
    const meaning = this.#meanings.get(source)
    if (!meaning) {
      const why = this.#meanings.has(source) ? `is within &${source} itself` : 'has no anchor'
      throw new ConfigError(`${this.#place(alias)}: the alias *${source} ${why}`)
    }
    this.#length += meaning.length
    if (this.#length > longest) {
      const many = `aliases stand for more than ${longest} characters`
      throw new ConfigError(`${this.#place(alias)}: *${source}: ${many}`)
    }
    return meaning.node
  }

  #expandMap(map: YAMLMap): void {
    const known = new Set<unknown>()
    for (const pair of map.items) {
      const { key: written } = pair
      this.expand(pair)
      if (isMerge(pair)) continue
      // The parser has compared the keys, but not those that are aliases.
      if (known.has(keyOf(pair))) {
        throw new ConfigError(
          `${this.#place(written)}: ${String(keyOf(pair))}: the key is there twice`,
        )
      }
      known.add(keyOf(pair))
    }
    const merges = map.items.filter(isMerge)
    map.items = map.items.filter((pair) => !isMerge(pair))
    for (const merge of merges) {
      for (const pair of this.#merged(merge)) {
        if (known.has(keyOf(pair))) continue
        known.add(keyOf(pair))
        map.items.push(pair)
      }
    }
  }

  #merged({ key, value }: Pair): readonly Pair[] {
    const sources: readonly unknown[] = isSeq(value) ? value.items : [value]
    return sources.flatMap((source) => {
      if (isMap(source)) return source.items
      const shown = quote(isNode(value) ? value.toJSON() : value)
      throw new ConfigError(`${this.#place(key)}: <<: ${shown} is neither a map nor a list of maps`)
    })
  }
}

/** The parser reads the key `<<` as a symbol, but `"<<"` as a text. */
function isMerge({ key }: Pair): boolean {
  return isScalar(key) && typeof key.value === 'symbol'
}

function keyOf({ key }: Pair): unknown {
  return isScalar(key) ? key.value : key
}
