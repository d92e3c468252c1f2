import { optionLines } from './option-lines.js'
import { printable } from '../../state/names.js'
import { hostPort } from '../../state/ip.js'
import type { EndpointReason } from './endpoint-reasons.js'
import { whereText, type Hop, type Packet, type Way } from './packet.js'
import type { ModeName } from '../../config/config.js'
import type { Question } from './question.js'

export interface Explanation {
  readonly mode: ModeName
  readonly ways: readonly Way[]
  /** Every endpoint of the Service, and why it is used here or not. */
  readonly endpoints: readonly EndpointReason[]
  /** The ways through the rules that the kernel has; undefined if it was not asked. */
  readonly live: readonly Way[] | undefined
  /** Why the kernel could not be asked; else empty. */
  readonly notAsked: string
  /** What stops such connections on this node although the rules are right; only if it was asked. */
  readonly obstacles?: readonly string[]
}

/** An explanation for people: first what all ways share, then each way. */
export function explanationText(question: Question, explanation: Explanation): string {
  const { mode, ways, endpoints } = explanation
  const { packet, sender, service } = question
  const to = hostPort(packet.destination, packet.port)
  const of = service ? `, an address of ${service.portName}` : ', which is no address of a Service'
  const common = sharedHops(ways)
  return [
    `${packet.protocol} from ${sender} to ${to}${of}, in ${mode} mode:`,
    '',
    ...common.flatMap((hop, index) => hopLines(hop, `${index + 1}.`)),
    ...verdictLines(ways, common.length),
    ...liveLines(explanation),
    ...obstacleLines(explanation),
    ...(service ? ['', ...endpointLines(service.portName, endpoints)] : []),
    ...(service ? optionLines(service, mode) : []),
    '',
  ]
    .map(printable)
    .join('\n')
}

/** The beginning that all ways have in common. */
export function sharedHops(ways: readonly Way[]): readonly Hop[] {
  const [first] = ways
  if (!first) return []
  const isShared = (hop: Hop, index: number) => ways.every(({ hops }) => isSame(hops[index], hop))
  const end = first.hops.findIndex((hop, index) => !isShared(hop, index))
  return end < 0 ? first.hops : first.hops.slice(0, end)
}

function isSame(a: Hop | undefined, b: Hop | undefined): boolean {
  return (
    whereText(a?.path ?? []) === whereText(b?.path ?? []) &&
    a?.rule === b?.rule &&
    a?.why === b?.why
  )
}

function hopLines({ path, rule, why, notes = [] }: Hop, number: string): readonly string[] {
  const indent = ' '.repeat(number.length + 1)
  return [
    `${number} ${whereText(path)}`,
    ...(rule === '' ? [] : [`${indent}${rule}`]),
    `${indent}=> ${why}`,
    ...notes.map((note) => `${indent}!! ${note}`),
  ]
}

/** Whether the kernel has anything else on this way than it should. */
export function kernelDiffers({ ways, live }: Pick<Explanation, 'ways' | 'live'>): boolean {
  const ends = (list: readonly Way[]) => list.map((way) => percent(way) + verdictOf(way)).join()
  // Some differences belong to no hop, such as an element that a rule only looks up.
  return live !== undefined && (isFlagged(ways) || ends(ways) !== ends(live))
}

const isFlagged = (ways: readonly Way[]) =>
  ways.some(({ hops }) => hops.some(({ notes }) => notes !== undefined))

/** The comparison with the kernel, if there is one. */
function liveLines({ ways, live, notAsked }: Explanation): readonly string[] {
  if (notAsked !== '') return ['', `Not compared with the kernel: ${notAsked}`]
  if (!live) return []
  if (!kernelDiffers({ ways, live }))
    return ['', 'The kernel has every rule and element of this way.']
  const marks = isFlagged(ways) ? '!! above; ' : ''
  const now = live.map((way) => `${percent(way)} ${verdictOf(way)}`)
  return [
    '',
    `The kernel differs (${marks}\`kube-proxy diff\` shows all). With the rules that it has now:`,
    ...now,
  ]
}

/** What is not in the rules of the mode, and decides all the same. */
function obstacleLines({ live, obstacles = [] }: Explanation): readonly string[] {
  return [
    ...(live
      ? ['Rules of other programs are not looked at; `kube-proxy trace` shows them, too.']
      : []),
    ...obstacles.map((text) => `!! But ${text}.`),
  ]
}

const percent = ({ probability }: Way) => `${(probability * 100).toFixed(1).padStart(5)} %`

function verdictLines(ways: readonly Way[], shared: number): readonly string[] {
  const [only] = ways
  if (ways.length === 1 && only) return ['', `So it is ${verdictOf(only)}.`]
  return [
    ...(shared === 0 ? ['By chance or in turn:'] : ['', 'Then, by chance or in turn:']),
    ...ways.flatMap((way) => [
      '',
      `${percent(way)}  ${verdictOf(way)}`,
      ...way.hops.slice(shared).flatMap((hop) => hopLines(hop, '    -')),
    ]),
  ]
}

export function verdictOf({ end, packet, isAnsweredPast }: Way): string {
  const to = hostPort(packet.destination, packet.port)
  switch (end) {
    case 'dropped':
      return 'dropped: the sender gets no answer'
    case 'rejected':
      return 'refused: the sender is told at once'
    case 'local':
      if (packet.isDnated) return `for this node itself, ${to}: a listener there answers`
      return `for this node itself, ${to}: no rule is about it, and without a listener there it is refused`
    case 'sent': {
      if (isAnsweredPast) {
        return `sent to ${to} on another node, which answers the sender directly: the sender discards the answer`
      }
      if (!packet.isDnated) return `sent on to ${to} unchanged: no rule is about it`
      return `sent to ${to}, ${sightText(packet)}`
    }
  }
}

function sightText({ isMasqueraded, isHiddenOnBridge }: Packet): string {
  if (isMasqueraded) return 'which sees an address of this node as the sender'
  if (isHiddenOnBridge === undefined) return 'which sees the sender'
  const filtered = isHiddenOnBridge === 'always' ? '' : ' with bridge-nf-call-iptables=1'
  return `which sees the sender (this node, if they share a bridge${filtered})`
}

function endpointLines(portName: string, endpoints: readonly EndpointReason[]): readonly string[] {
  const width = Math.max(0, ...endpoints.map(({ key }) => key.length))
  return [
    `Endpoints of ${portName}:`,
    ...endpoints.map(
      ({ key, isUsed, reason }) => `  ${isUsed ? 'used' : 'out '}  ${key.padEnd(width)}  ${reason}`,
    ),
    ...(endpoints.length > 0
      ? []
      : [
          '  none; no EndpointSlice of it has an address: does its selector fit the labels of a pod?',
        ]),
  ]
}
