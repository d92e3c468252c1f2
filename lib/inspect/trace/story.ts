import { hostPort } from '../../state/ip.js'
import { printable } from '../../state/names.js'
import type { TracedPacket, TraceEvent } from './events.js'
import { iptablesReader } from '../../modes/iptables/render.js'
import { nftablesReader } from '../../modes/nftables/render.js'
import { isPortalChain } from '../../modes/userspace/names.js'
import { ownerText } from '../../modes/difference.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Config, ModeName } from '../../config/config.js'

/** One rule that a real packet met. */
interface TracedHop {
  /** Table and chain, `ip nat KUBE-SERVICES`. */
  readonly where: string
  readonly rule: string
  readonly why: string
  /** The service port that the rule belongs to; empty if unknown. */
  readonly owner: string
}

/** What happened to the first packet of one connection. */
export interface TraceStory {
  readonly from: string
  readonly to: string
  /** The interface it came in by; empty for a connection of this node. */
  readonly inInterface: string
  readonly hops: readonly TracedHop[]
  /** Lost: no chain behind the routing saw it. */
  readonly end: 'sent' | 'dropped' | 'rejected' | 'lost'
  /** Its destination when it was last seen. */
  readonly destination: string
  readonly isMasqueraded: boolean
}

/** The service port that a chain belongs to; empty where that is unknown. */
type OwnerOfChain = (chain: string) => string

interface StoryContext {
  readonly target: { readonly ip: string; readonly port: number }
  readonly ownerOf: OwnerOfChain
  /** The Service that answers at the target; empty if there is none, or if it is unknown. */
  readonly ownerOfTarget: string
}

export function storyOf(
  events: readonly TraceEvent[],
  { target: asked, ownerOf, ownerOfTarget }: StoryContext,
): TraceStory {
  const packets = events.flatMap((event) => (event.kind === 'packet' ? [event.packet] : []))
  const rules = events.flatMap((event) => (event.kind === 'rule' ? [event] : []))
  const [first, last] = [packets[0] ?? unseen, packets.at(-1) ?? unseen]
  const hops = rules.map(({ table, chain, rule, verdict }) => ({
    where: `${table} ${chain}`,
    rule,
    why: whyOf(rule, verdict, chain),
    owner: firstKnown(
      ownerOf(targetOf(verdict) ?? ''),
      ownerOf(chain),
      isAbout(rule, asked) || looksUpTarget(table, rule) ? ownerOfTarget : '',
    ),
  }))
  const isDropped = events.some((event) => event.kind !== 'packet' && event.verdict === 'drop')
  const isRejected = rules.some(({ rule }) => does(rule, 'reject'))
  const rewritten = rules.findLast(({ rule }) => rewrites.test(rule))
  const target =
    /(?:\bdnat (?:ip6? )?to|--to-destination) (\[[^\]]+\]:\d+|[\d.]+:\d+)\b(?! map)/.exec(
      rewritten?.rule ?? '',
    )
  return {
    from: hostPort(first.source, first.sourcePort),
    to: hostPort(first.destination, first.destinationPort),
    inInterface: first.inInterface,
    hops,
    end: isRejected ? 'rejected' : isDropped ? 'dropped' : isLost(events) ? 'lost' : 'sent',
    destination: isSame(first, last) && target?.[1] !== undefined ? target[1] : placeOf(last),
    isMasqueraded: rules.some(({ rule }) => does(rule, 'masquerade')),
  }
}

const firstKnown = (...names: readonly string[]) => names.find((name) => name !== '') ?? ''

/** A rule that names the address asked for, or the node port. */
function isAbout(rule: string, { ip, port }: StoryContext['target']): boolean {
  const words = rule.split(' ')
  const isNamed = words.some((word) => word === ip || word === `${ip}/32` || word === `${ip}/128`)
  const names = / (?:daddr|-d) /.test(` ${rule}`)
  return isNamed || (`${rule} `.includes(`dport ${port} `) && !names)
}

/** Only our own maps are known to be looked up by the destination of a packet. */
const looksUpTarget = (table: string, rule: string) =>
  /^ip6? kube-proxy$/.test(table) && / (?:v?map|dport) @/.test(rule)

const unseen: TracedPacket = {
  inInterface: '',
  outInterface: '',
  source: '',
  destination: '',
  sourcePort: 0,
  destinationPort: 0,
}

const placeOf = ({ destination, destinationPort }: TracedPacket) =>
  hostPort(destination, destinationPort)

const isSame = (a: TracedPacket, b: TracedPacket) => placeOf(a) === placeOf(b)

function targetOf(verdict: string): string | undefined {
  return /^(?:jump|goto) (\S+)$/.exec(verdict)?.[1]
}

/** A rule that only asks for the state DNAT changes nothing. */
const rewrites = /\bdnat (?:ip6? )?to\b|(?:-j |target ")DNAT\b/

/**
 * The kernel routes a packet at once when its destination has changed. Its destination tells nothing
 * of that: an endpoint may have the address that was asked for.
 */
function isLost(events: readonly TraceEvent[]): boolean {
  const at = events.findLastIndex((event) => event.kind === 'rule' && rewrites.test(event.rule))
  const isRouted = (event: TraceEvent) =>
    event.kind === 'packet' && (event.packet.outInterface !== '' || !isBefore(event.chain))
  const hasPacket = events.some(({ kind }) => kind === 'packet')
  return hasPacket && !events.slice(Math.max(0, at)).some(isRouted)
}

/** A chain of a hook before the routing, by the names that nft, iptables and firewalld give it. */
const isBefore = (chain: string) => /prerouting/i.test(chain)

const redirects = /(?:\bredirect to :|-j REDIRECT --to-ports )(\d+)/
const newPort =
  /(?:\b(?:redirect|dnat(?: ip6?)?) to |--to-(?:ports|destination) )(?:\S*:)?(\d+)(?!\S)/

/** Whether a rule has the statement or target. Comments and names of chains may have the word, too. */
function does(rule: string, what: 'masquerade' | 'reject'): boolean {
  const statement = { masquerade: / masquerade /, reject: / reject / }[what]
  const target = { masquerade: /(?:-j |target ")MASQUERADE\b/, reject: /(?:-j |target ")REJECT\b/ }
  const bare = ` ${rule} `.replace(/\bcomment (?:"[^"]*"|\S+)/g, '')
  return statement.test(bare) || target[what].test(bare)
}

/** What a rule did, in plain words. */
function whyOf(rule: string, verdict: string, chain: string): string {
  const target = targetOf(verdict)
  if (target !== undefined) return `on to chain ${target}`
  if (does(rule, 'masquerade')) {
    return 'the source becomes an address of this node, so that answers come back through it'
  }
  if (does(rule, 'reject')) return 'refused, and the sender is told'
  if (verdict === 'drop') return 'dropped, and the sender gets no answer'
  const listener = (isPortalChain(chain) ? newPort : redirects).exec(rule)?.[1]
  if (listener !== undefined) return `handed to a listener of this node, port ${listener}`
  if (verdict === 'return') return 'back to the chain before'
  if (rewrites.test(rule)) return 'the destination becomes that of an endpoint'
  if (/\bmark (?:xor|\^) |-j MARK (?:--xor-mark |--set-xmark \S+\/0x0$)/.test(rule))
    return 'the mark is removed'
  if (/\bmark set\b|-j MARK\b/.test(rule)) return 'marked for a later rule'
  if (verdict === 'accept') return 'let through'
  return 'matched, without a verdict'
}

/** The sender of a connection that no packet shows. */
export const aSocket = 'a socket'

function viaOf({ from, inInterface }: TraceStory): string {
  if (from === aSocket) return 'of this node or of one of its pods'
  return inInterface === '' ? 'of this node itself' : `in by ${inInterface}`
}

/** The story as text, in the form of `explain`. */
export function storyText(story: TraceStory, afterwards: readonly string[]): string {
  const { from, to, hops, end, destination, isMasqueraded } = story
  const lines = [`A connection from ${from} to ${to}, ${viaOf(story)}:`, '']
  for (const [index, { where, rule, why, owner }] of hops.entries()) {
    const number = `${index + 1}.`
    const indent = ' '.repeat(number.length + 1)
    lines.push(`${number} ${where}${owner === '' ? '' : ` (${owner})`}`)
    lines.push(`${indent}${printable(rule)}`, `${indent}=> ${why}`)
  }
  if (hops.length === 0) lines.push('No rule matched it.')
  const source = isMasqueraded ? ', with an address of this node as the sender' : ''
  const ending = {
    sent: `sent to ${destination}${source}`,
    dropped: 'dropped: the sender gets no answer',
    rejected: 'refused: the sender is told at once',
    lost: 'lost in the routing of this node: no chain behind the routing saw it',
  }
  return [...lines, '', `So it was ${ending[end]}.`, ...afterwards, ''].join('\n')
}

/** The owner of each chain, in modes where service ports have their own chains. */
export function chainOwners(
  mode: ModeName,
  states: readonly DesiredState[],
  config: Config,
): OwnerOfChain {
  const owners = new Map<string, string>()
  for (const state of states) {
    if (mode === 'iptables') {
      for (const { key, chains } of iptablesReader(config).plan(state).services.values()) {
        for (const { chain } of chains) owners.set(chain, ownerText(key))
      }
    } else if (mode === 'nftables' || mode === 'ebpf') {
      for (const [key, { chains }] of nftablesReader(config).plan(state).parts) {
        for (const { name } of chains) owners.set(name, ownerText(key))
      }
    }
  }
  return (chain) => owners.get(chain) ?? ownerInName(chain)
}

/** Chains of nftables mode carry the name: `service-SUSTUHLJ-default/web/tcp/http`. */
export function ownerInName(chain: string): string {
  const found = /^[a-z]+-[A-Z2-7]{8}-([^/]+)\/([^/]+)\/(?:tcp|udp|sctp)\/([^/_]*)/.exec(chain)
  if (!found) return ''
  const [, namespace = '', name = '', port = ''] = found
  return `${namespace}/${name}${port === '' ? '' : `:${port}`}`
}
