import { printable } from '../state/printable.js'
import { hostPort } from '../state/ip.js'
import type { DesiredService } from '../state/desired-state.js'
import type { Hop, Way } from './packet.js'
import type { Question } from './question.js'

/** An explanation for people: the way all packets share, then where they part. */
export function explanationText(question: Question, mode: string, ways: readonly Way[]): string {
  const { packet, sender, service } = question
  const to = hostPort(packet.destination, packet.port)
  const of = service ? `, an address of ${service.portName}` : ', which is no address of a Service'
  const common = sharedHops(ways)
  return [
    `${packet.protocol} from ${sender} to ${to}${of}, in ${mode} mode:`,
    '',
    ...common.flatMap((hop, index) => hopLines(hop, `${index + 1}.`)),
    ...verdictLines(ways, common.length),
    ...(service ? ['', ...endpointLines(service)] : []),
    '',
  ]
    .map(printable)
    .join('\n')
}

/** The beginning that all ways have in common. */
export function sharedHops(ways: readonly Way[]): readonly Hop[] {
  const [first] = ways
  if (!first) return []
  let length = 0
  while (
    length < first.hops.length &&
    ways.every(({ hops }) => isSame(hops[length], first.hops[length]))
  ) {
    length++
  }
  return first.hops.slice(0, length)
}

function isSame(a: Hop | undefined, b: Hop | undefined): boolean {
  return a?.where === b?.where && a?.rule === b?.rule && a?.why === b?.why
}

function hopLines({ where, rule, why }: Hop, number: string): readonly string[] {
  const indent = ' '.repeat(number.length + 1)
  return [`${number} ${where}`, ...(rule === '' ? [] : [`${indent}${rule}`]), `${indent}=> ${why}`]
}

function verdictLines(ways: readonly Way[], shared: number): readonly string[] {
  const [only] = ways
  if (ways.length === 1 && only) return ['', `So it is ${verdictOf(only)}.`]
  return [
    '',
    'Then, by chance or in turn:',
    ...ways.flatMap((way) => [
      '',
      `${(way.probability * 100).toFixed(1).padStart(5)} %  ${verdictOf(way)}`,
      ...way.hops.slice(shared).flatMap((hop) => hopLines(hop, '    -')),
    ]),
  ]
}

export function verdictOf({ end, packet }: Way): string {
  const to = hostPort(packet.destination, packet.port)
  switch (end) {
    case 'dropped':
      return 'thrown away: the sender hears nothing'
    case 'rejected':
      return 'refused: the sender is told at once'
    case 'local':
      return `for this node itself, ${to}: whoever listens there answers`
    case 'sent': {
      if (!packet.isDnated) return `sent on to ${to} as it is: no rule is about it`
      const source = packet.isMasqueraded
        ? 'which sees an address of this node as the sender'
        : 'which sees the sender'
      return `sent to ${to}, ${source}`
    }
  }
}

function endpointLines(service: DesiredService): readonly string[] {
  const { reachableEndpoints, servingEndpoints, localEndpoints } = service
  const used = new Set(reachableEndpoints.map(({ key }) => key))
  const local = new Set(localEndpoints.map(({ key }) => key))
  const lines = reachableEndpoints.map(({ key, isLocal, terminating }) => {
    const words = [
      isLocal ? 'on this node' : 'on another node',
      ...(terminating ? ['terminating'] : []),
    ]
    const only = local.size > 0 && !local.has(key) ? ', not for traffic with policy Local' : ''
    return `  ${key}  in use, ${words.join(', ')}${only}`
  })
  for (const { key } of servingEndpoints) {
    if (!used.has(key))
      lines.push(`  ${key}  serves, but policy or topology hints leave it out here`)
  }
  return [
    `Endpoints of ${service.portName}:`,
    ...(lines.length > 0 ? lines : ['  none that serves']),
  ]
}
