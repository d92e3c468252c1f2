/**
 * kube-proxy-ts as a library. It renders the rules that a node would get for Kubernetes objects,
 * and explains the way of a connection through them. Everything here is pure: no kernel, no root,
 * no network, no file. The iptables library is `kube-proxy-ts/iptables`.
 */
import { answerOf, explainQuestion, type Answer } from './inspect/explain/answer.js'
import { apiVersion, kind as configurationKind } from './config/file.js'
import { collect, type NodeStates } from './sources/collected-states.js'
import { ConfigError } from './errors.js'
import { explanationText } from './inspect/explain/text.js'
import { loadConfig } from './config/load.js'
import { mirrorEndpoints } from './sources/mirrored-endpoints.js'
import { parseFlags } from './config/flags.js'
import { parseManifest, readObject, type ManifestObject } from './sources/manifest-file.js'
import { parseNode } from './state/parse-node.js'
import { planners, rulesText } from './modes/planners.js'
import { trackerSettings } from './config/tracker-settings.js'
import { understand } from './inspect/explain/question.js'
import type { Config, ModeName } from './config/config.js'
import { ipFamilies, parseIp, type IpFamily } from './state/ip.js'
import { protocols, type Protocol } from './state/names.js'

export { ConfigError } from './errors.js'
export type { Answer, JudgedWay, PlainHop } from './inspect/explain/answer.js'
export type { EndpointReason } from './inspect/explain/endpoint-reasons.js'
export type { Packet, WayEnd } from './inspect/explain/packet.js'
export type { IpFamily } from './state/ip.js'
export type { ModeName } from './config/config.js'
export type { Protocol } from './state/names.js'

/** A pretended node, and the Kubernetes objects that it serves. */
export interface NodeOptions {
  /** How the node implements Services. */
  readonly mode: ModeName
  /**
   * Services, EndpointSlices or Endpoints, Nodes and ServiceCIDRs as JSON or YAML gave them, with
   * `apiVersion` and `kind`. Lists are taken apart, other kinds are passed over.
   */
  readonly objects: readonly unknown[]
  /** Decides which endpoints are local; `node-1` unless given. */
  readonly nodeName?: string
  /** Addresses of the node; those of its Node object unless given, or 192.0.2.1 and 2001:db8::1. */
  readonly nodeAddresses?: readonly string[]
  /** `['IPv4']` unless given. */
  readonly families?: readonly IpFamily[]
  /**
   * Keys of a KubeProxyConfiguration as in docs/configuration.md; `{ clusterCIDR: '10.244.0.0/16' }`
   * unless given.
   */
  readonly configuration?: Readonly<Record<string, unknown>>
}

export interface RenderedRules {
  /** In the words of the mode's tool; with several families, each has its heading. */
  readonly text: string
  /** What was skipped or left out, and why. */
  readonly warnings: readonly string[]
}

/** The first packet of a connection, before it is sent. */
export interface ConnectionOptions extends NodeOptions {
  /** `namespace/name[:port]`, `name[:port]` in the namespace default, or `IP:port`. */
  readonly to: string
  /** `pod` (the default) or `node` here, `outside`, or an IP address. */
  readonly from?: string
  /** Needed only where a port has several protocols. */
  readonly protocol?: Protocol
}

export interface ConnectionExplanation extends Answer {
  /** The whole explanation as text for people. */
  readonly text: string
  /** What was skipped or left out, and why. */
  readonly warnings: readonly string[]
}

/**
 * The objects of a manifest: YAML with any number of documents, or JSON. Messages contain `name`.
 * Throws ConfigError that lists every problem with its line.
 */
export function parseObjects(text: string, name = 'manifest'): readonly unknown[] {
  const { objects, problems } = parseManifest(text, name)
  if (problems.length > 0) throw new ConfigError(problems.join('\n'))
  return objects.map(({ raw }) => raw)
}

/** The rules that a node would get for these objects. Throws ConfigError for wrong options. */
export function renderRules(options: NodeOptions): RenderedRules {
  checkOptions(options, ['mode', 'objects'])
  const { mode, config, states, warnings } = pretend(options)
  return { text: rulesText(mode, config, states), warnings }
}

/**
 * The ways that the first packet of a connection may take through the rules of this node: each with
 * its probability, its hops, and the end of the packet. Throws ConfigError for wrong options, such
 * as a Service that does not exist.
 */
export function explainConnection(options: ConnectionOptions): ConnectionExplanation {
  checkOptions(options, ['mode', 'objects', 'to'])
  const { to: target, from = 'pod', protocol } = options
  const node = pretend(options)
  const question = understand({ target, from, protocol }, node.states)
  if (typeof question === 'string') throw new ConfigError(question)
  const explanation = explainQuestion(question, node)
  return {
    ...answerOf(question, explanation),
    text: explanationText(question, explanation),
    warnings: node.warnings,
  }
}

interface PretendedNode extends NodeStates {
  readonly mode: ModeName
  readonly config: Config
  readonly nodeName: string
}

const usualConfiguration = { clusterCIDR: '10.244.0.0/16' }

function pretend(options: NodeOptions): PretendedNode {
  const { mode, nodeName = 'node-1', families = ['IPv4'] } = options
  const { configuration = usualConfiguration } = options
  const text = JSON.stringify({ ...configuration, apiVersion, kind: configurationKind })
  const { config, warnings } = loadConfig(parseFlags([]), { name: 'configuration', text })
  const read = options.objects.flatMap((value, index) => readObject(value, `objects[${index}]`))
  const objects = read.filter((item) => typeof item !== 'string')
  const problems = read.filter((item) => typeof item === 'string')
  const addresses = options.nodeAddresses ?? addressesOf(nodeName, objects)
  const { sink, taken } = collect(trackerSettings(config, mode, { nodeName, families }), addresses)
  for (const { kind, raw } of mirrorEndpoints(objects)) sink.upsert(kind, raw)
  const states = taken()
  return {
    ...states,
    warnings: [...warnings, ...problems, ...states.warnings],
    ...{ mode, nodeName, config },
  }
}

const isText = (value: unknown) => typeof value === 'string' && value !== ''
const listOf = (isItem: (value: unknown) => boolean) => (value: unknown) =>
  Array.isArray(value) && value.every(isItem)
const isAddress = (value: unknown) => typeof value === 'string' && parseIp(value) !== undefined
const isObject = (value: unknown) =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const isOneOf = (words: readonly string[]) => (value: unknown) =>
  words.some((word) => word === value)

/** What each option takes: in words, and as a test. */
const optionKinds: Readonly<Record<string, readonly [string, (value: unknown) => boolean]>> = {
  mode: [`one of ${Object.keys(planners).join(', ')}`, isOneOf(Object.keys(planners))],
  objects: ['a list of objects', Array.isArray],
  nodeName: ['a name', isText],
  nodeAddresses: ['a list of IP addresses', listOf(isAddress)],
  families: [`a list of ${ipFamilies.join(', ')}`, listOf(isOneOf(ipFamilies))],
  configuration: ['an object', isObject],
  to: ['a text', isText],
  from: ['a text', isText],
  protocol: [`one of ${protocols.join(', ')}`, isOneOf(protocols)],
}

/** Programs without types pass anything. */
function checkOptions(options: object, needed: readonly string[]): void {
  const missing = needed.find((name) => !Object.hasOwn(options, name))
  if (missing !== undefined) throw new ConfigError(`option ${missing} is missing`)
  for (const [name, value] of Object.entries(options)) {
    const kind = Object.hasOwn(optionKinds, name) ? optionKinds[name] : undefined
    if (!kind) {
      const known = Object.keys(optionKinds).join(', ')
      throw new ConfigError(`option ${JSON.stringify(name)} is unknown; there are: ${known}`)
    }
    if (value === undefined && !needed.includes(name)) continue
    const [what, isRight] = kind
    const given = typeof value === 'string' ? `, not ${JSON.stringify(value)}` : ''
    if (!isRight(value)) throw new ConfigError(`option ${name} takes ${what}${given}`)
  }
}

/** Addresses for documentation. They are used where no Node object gives the real ones. */
const usualAddresses = ['192.0.2.1', '2001:db8::1']

function addressesOf(nodeName: string, objects: readonly ManifestObject[]): readonly string[] {
  const node = objects.find(({ kind, name }) => kind === 'Node' && name === nodeName)
  const parsed = node ? parseNode(node.raw) : undefined
  const own = parsed?.outcome === 'accepted' ? parsed.value.ips : usualAddresses
  return [...own, '127.0.0.1', '::1']
}
