import { LineCounter, isMap, isScalar, parseDocument } from 'yaml'
import type { Node, YAMLMap } from 'yaml'
import { ConfigError } from '../errors.js'
import { tooDeep } from '../yaml-levels.js'
import { AliasExpander } from './aliases.js'
import type { AnyKey } from './keys.js'
import { keyAt, keyEntries, retiredKeys, sections } from './keys.js'
import { notOfKind } from './kinds.js'
import type { Origin, Setting, Settings } from './settings.js'
import { nearest } from '../state/names.js'
import { quote, throwProblems } from './settings.js'

export const apiVersion = 'kubeproxy.config.k8s.io/v1alpha1'
export const kind = 'KubeProxyConfiguration'

/**
 * A file with every key has a few thousand characters. The thread that answers health checks reads a
 * file that changes, and takes a third of a second for so many.
 */
const longest = 256 * 1024

interface ConfigFile {
  readonly settings: Settings
  readonly warnings: readonly string[]
}

/**
 * Reads the text of a configuration file. It is strict: an unknown key, a key that appears twice or
 * a value of the wrong type is an error with key, value and `file:line`. Throws ConfigError.
 */
export function parseConfigFile(text: string, file: string): ConfigFile {
  return new FileParser(file).parse(text)
}

class FileParser {
  readonly #file: string
  readonly #lines = new LineCounter()
  readonly #settings = new Map<string, Setting>()
  readonly #warnings: string[] = []
  readonly #problems: string[] = []

  constructor(file: string) {
    this.#file = file
  }

  parse(text: string): ConfigFile {
    if (text.length > longest) {
      throw new ConfigError(
        `${this.#file}: the file has ${text.length} characters; at most ${longest} are read`,
      )
    }
    const deep = tooDeep(text, this.#file)
    if (deep !== undefined) throw new ConfigError(deep)
    // Kubernetes reads YAML 1.1, in which `yes` and `on` are booleans.
    const document = parseDocument(text, {
      version: '1.1',
      lineCounter: this.#lines,
      prettyErrors: false,
      merge: true,
    })
    for (const { code, message, pos } of document.errors) {
      const place = this.#place(pos[0])
      // Kubernetes reads the first document, and ends there.
      if (code === 'MULTIPLE_DOCS')
        this.#warnings.push(`${place}: not read: only the first document counts`)
      // The parser does not say which key it means.
      else if (code === 'DUPLICATE_KEY')
        this.#problems.push(`${place}: ${keyIn(text, pos[0])}: the key is there twice`)
      else this.#problems.push(`${place}: ${message}`)
    }
    throwProblems(this.#problems)
    if (!isMap(document.contents)) {
      throw new ConfigError(`${this.#file}: the file has no ${kind}; write apiVersion and kind`)
    }
    const place = (node: unknown) => this.#place(offsetOf(nodeOf(node)))
    new AliasExpander(place).expand(document.contents)
    this.#header(document.contents)
    this.#section(document.contents, '')
    throwProblems(this.#problems)
    return { settings: this.#settings, warnings: this.#warnings }
  }

  #header(map: YAMLMap): void {
    const given = map.get('kind')
    if (given === 'ConfigMap') {
      throw new ConfigError(
        `${this.#file}: this is a ConfigMap; give the text under its key config.conf`,
      )
    }
    if (given !== kind) this.#wrongHeader(map, 'kind', given, kind)
    const version = map.get('apiVersion')
    if (version !== apiVersion) this.#wrongHeader(map, 'apiVersion', version, apiVersion)
  }

  #wrongHeader(map: YAMLMap, key: string, given: unknown, wanted: string): void {
    const place = this.#place(offsetOf(map.get(key, true)))
    const seen = given === undefined ? 'is missing' : `is ${quote(given)}`
    this.#problems.push(`${place}: ${key} ${seen}; write ${key}: ${wanted}`)
  }

  #section(map: YAMLMap, prefix: string): void {
    for (const pair of map.items) {
      const name = isScalar(pair.key) ? String(pair.key.value) : ''
      const path = prefix === '' ? name : `${prefix}.${name}`
      if (path === 'apiVersion' || path === 'kind') continue
      const node = nodeOf(pair.value)
      const key = keyAt(path)
      const offset = offsetOf(nodeOf(pair.key))
      if (key) this.#value(path, key, node, offset)
      else if (sections.has(path)) this.#nested(path, node, offset)
      else this.#unknown(path, node, offset)
    }
  }

  #nested(path: string, node: Node | undefined, offset: number): void {
    if (isMap(node)) this.#section(node, path)
    else if (!isAbsent(node)) {
      const value: unknown = node?.toJSON()
      this.#problems.push(`${this.#place(offset)}: ${path}: ${quote(value)} is not a map`)
    }
  }

  #value(path: string, key: AnyKey, node: Node | undefined, offset: number): void {
    // null means that the key is absent, as in Go.
    if (isAbsent(node)) return
    const raw: unknown = node?.toJSON()
    const value = key.kind.fromYaml(raw)
    if (value === undefined) {
      const place = this.#place(offset)
      this.#problems.push(notOfKind(`${place}: ${path}: ${quote(raw)}`, raw, key.kind))
    } else if (!(key.zeroIsDefault && (value === '' || value === 0))) {
      this.#settings.set(path, { value, origin: this.#origin(offset) })
    }
  }

  #unknown(path: string, node: Node | undefined, offset: number): void {
    const place = this.#place(offset)
    const advice = Object.hasOwn(retiredKeys, path) ? retiredKeys[path] : undefined
    if (advice !== undefined) {
      if (isAbsent(node)) return
      this.#warnings.push(`${place}: ${path} is no longer known and has no effect: ${advice}`)
      return
    }
    const near = nearest(path, [...keyEntries.map(([name]) => name), ...sections])
    const value = quote(isMap(node) ? '{…}' : node?.toJSON())
    const hint = near === undefined ? 'see docs/configuration.md' : `did you mean ${near}?`
    this.#problems.push(`${place}: ${path}: ${value}: unknown key; ${hint}`)
  }

  #origin(offset: number): Origin {
    return { from: 'file', file: this.#file, line: this.#lines.linePos(offset).line }
  }

  #place(offset: number): string {
    return `${this.#file}:${this.#lines.linePos(offset).line}`
  }
}

function nodeOf(value: unknown): Node | undefined {
  return typeof value === 'object' && value !== null && 'toJSON' in value
    ? (value as Node)
    : undefined
}

function isAbsent(node: Node | undefined): boolean {
  return node === undefined || (isScalar(node) && node.value === null)
}

/** The key that begins there, as it is written. */
function keyIn(text: string, offset: number): string {
  return /^(?:"[^"]*"|'[^']*'|[^\s:]+)/.exec(text.slice(offset))?.[0] ?? '?'
}

function offsetOf(node: Node | undefined): number {
  return node?.range?.[0] ?? 0
}
