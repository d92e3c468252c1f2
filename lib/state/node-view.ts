import {
  cidrContains,
  cidrsOf,
  bitsOf,
  isLinkLocal,
  isLoopback,
  parseIp,
  type Ip,
  type IpFamily,
} from './ip.js'
import type { DesiredState, NodePortAddresses, NodeView, LocalTraffic } from './desired-state.js'
import type { NodeObject } from './objects.js'

/** How traffic from pods of this node is recognized, as configured (R07). */
export type DetectLocal =
  | { readonly mode: 'ClusterCIDR'; readonly cidrs: readonly string[] }
  | { readonly mode: 'NodeCIDR' }
  | { readonly mode: 'BridgeInterface'; readonly name: string }
  | { readonly mode: 'InterfaceNamePrefix'; readonly prefix: string }

export interface NodeSettings {
  readonly nodeName: string
  /** Overrides the address in the Node object, for the family of this address (L05). */
  readonly bindAddress: string
  /** CIDRs and words of `nodePortWords`; empty means every address. */
  readonly nodePortAddresses: readonly string[]
  readonly detectLocal: DetectLocal
}

interface NodeInput {
  readonly node: NodeObject | undefined
  /** In the order of the interfaces. */
  readonly localAddresses: readonly string[]
}

/** This node in one family. */
export function buildNodeView(
  family: IpFamily,
  settings: NodeSettings,
  input: NodeInput,
): NodeView {
  const local = input.localAddresses
    .map(parseIp)
    .filter((ip) => ip !== undefined)
    .filter((ip) => ip.family === family)
  const primary = primaryIp(family, settings, input, local)
  return Object.freeze({
    name: settings.nodeName,
    primaryIp: primary?.text,
    localAddresses: texts(local),
    nodePorts: nodePortAddresses(family, settings, primary, local),
    localTraffic: localTraffic(family, settings.detectLocal, input.node),
  })
}

/** The main address (L05). Without a Node object: the first that other nodes could reach. */
function primaryIp(
  family: IpFamily,
  settings: NodeSettings,
  input: NodeInput,
  local: readonly Ip[],
): Ip | undefined {
  const bound = parseIp(settings.bindAddress)
  if (bound && bound.value !== 0n && bound.family === family) return bound
  const declared = input.node?.ips.map(parseIp).find((ip) => ip?.family === family)
  return declared ?? local.find((ip) => !isLoopback(ip) && !isLinkLocal(ip))
}

/** What may stand in `nodePortAddresses` beside CIDRs, as in kube-proxy 1.37. */
export const nodePortWords: readonly string[] = ['primary', 'localhost', 'all']

/** The addresses on which node ports answer (S23, L06, L07). */
function nodePortAddresses(
  family: IpFamily,
  settings: NodeSettings,
  primary: Ip | undefined,
  local: readonly Ip[],
): NodePortAddresses {
  const asked = settings.nodePortAddresses
  const cidrs = cidrsOf(
    family,
    asked.flatMap((text) => rangesOf(text, primary)),
  )
  // A word is about both families, so a family without its address has no node ports.
  const isLeftOut = cidrs.length === 0 && !asked.some((text) => nodePortWords.includes(text))
  const matchesAll = isLeftOut || cidrs.some(({ prefix }) => prefix === 0)
  const matching = local.filter((ip) => matchesAll || cidrs.some((cidr) => cidrContains(cidr, ip)))
  return {
    matchesAll,
    cidrs: matchesAll ? [] : cidrs,
    addresses: texts(matching),
    asksForLoopback: cidrs.some(({ network }) => isLoopback({ family, value: network })),
  }
}

/** The loopback address at which node ports are asked for by themselves; undefined: none. */
export function loopbackOfNodePorts({ family, node }: DesiredState): string | undefined {
  const loopback = family === 'IPv4' ? '127.0.0.1' : '::1'
  const { asksForLoopback, addresses } = node.nodePorts
  return asksForLoopback && addresses.includes(loopback) ? loopback : undefined
}

/** The CIDRs that a word stands for. A CIDR stands for itself. */
function rangesOf(text: string, primary: Ip | undefined): readonly string[] {
  switch (text) {
    case 'primary':
      return primary && !isLoopback(primary) ? [`${primary.text}/${bitsOf(primary.family)}`] : []
    case 'localhost':
      return ['127.0.0.0/8', '::1/128']
    case 'all':
      return ['0.0.0.0/0', '::/0']
    default:
      return [text]
  }
}

/** R07, R08: without a CIDR of this family no packet counts as pod traffic. */
function localTraffic(
  family: IpFamily,
  detect: DetectLocal,
  node: NodeObject | undefined,
): LocalTraffic {
  switch (detect.mode) {
    case 'BridgeInterface':
      return { by: 'interface', name: detect.name }
    case 'InterfaceNamePrefix':
      return { by: 'interface-prefix', prefix: detect.prefix }
    case 'ClusterCIDR':
    case 'NodeCIDR': {
      const source = detect.mode === 'ClusterCIDR' ? detect.cidrs : (node?.podCidrs ?? [])
      const cidrs = cidrsOf(family, source)
      return cidrs.length > 0 ? { by: 'cidrs', cidrs } : { by: 'none' }
    }
  }
}

function texts(ips: readonly Ip[]): readonly string[] {
  return ips.map(({ text }) => text).sort()
}
