import { numberOf, optionPrefix, wordAnnotation, type Annotation } from './annotations.js'
import { parseIp } from './ip.js'
import { dnsName } from './parse-object.js'

/** How the endpoint of the next connection is chosen. */
export type Balance = (typeof balances)[number]

export const balances = [
  'round-robin',
  'random',
  'least-connections',
  'weighted',
  'source-hash',
  'maglev',
  'first',
] as const

export const balanceAnnotation = wordAnnotation('balance', balances)

/** How the endpoints of a Service are chosen. */
export interface BalanceChoice {
  /** What the annotation says. */
  readonly asked: Balance
  /** What the mode of this node does. */
  readonly used: Balance
  /**
   * Why something else is used, for all connections or for packets; undefined if nothing else is.
   */
  readonly why?: string
  /** What packets get, if the mode does what was asked only for connections at their socket. */
  readonly forPackets?: Balance
  /** How people are told what is used, if the word in `used` would promise too much. */
  readonly by?: string
}

/** What a mode does instead of a balance that it cannot do. */
export interface Substitute {
  readonly used: Balance
  readonly why: string
  /** Connections that are translated at their socket get what was asked for. */
  readonly onlyForPackets?: true
  readonly by?: string
}

export type Substitutes = Readonly<Partial<Record<Balance, Substitute>>>

export function choiceOf(asked: Balance, substitutes: Substitutes): BalanceChoice {
  const substitute = substitutes[asked]
  if (!substitute) return { asked, used: asked }
  const { used, why, by, onlyForPackets } = substitute
  if (onlyForPackets) return { asked, used: asked, why, forPackets: used }
  return { asked, used, why, ...(by === undefined ? {} : { by }) }
}

/** For people: what was asked for, and what is used. */
export function balanceText({ asked, used, why, forPackets, by = used }: BalanceChoice): string {
  const text = `${optionPrefix}${balanceAnnotation.name}: ${asked}`
  if (why !== undefined && forPackets !== undefined) {
    return `${text} is what connections get that are translated at their socket; for packets ${forPackets} is used: ${why}`
  }
  return why === undefined ? text : `${text} is not what this mode does: ${why}; ${by} is used`
}

export const maxWeight = 65_535

/** The weights that a Service gives its endpoints. */
export interface Weights {
  /** By address or name of the pod. */
  readonly exact: ReadonlyMap<string, number>
  /** By the beginning of the pod's name. The first that fits counts. */
  readonly prefixes: readonly { readonly prefix: string; readonly weight: number }[]
}

/** A limit, because a long list costs time for each endpoint, and anybody may write one. */
const mostPrefixes = 32

export const weightAnnotation: Annotation<Weights> = {
  name: 'weight',
  valid:
    `NAME=WEIGHT with a comma between two of them, where NAME is an address, the name of a pod, or its beginning and a * ` +
    `(at most ${mostPrefixes} of these), and WEIGHT is 0-${maxWeight}`,
  parse: parseWeights,
}

const podPrefix = /^[a-z0-9][a-z0-9.-]{0,252}\*$/

function parseWeights(text: string): Weights | undefined {
  const exact = new Map<string, number>()
  const prefixes: Weights['prefixes'][number][] = []
  for (const part of text.split(',')) {
    const [name = '', number = '', ...rest] = part.split('=').map((each) => each.trim())
    const weight = numberOf(number, 0, maxWeight)
    if (weight === undefined || rest.length > 0) return undefined
    const ip = parseIp(name)
    if (ip) exact.set(ip.text, weight)
    else if (dnsName.test(name)) exact.set(name, weight)
    else if (podPrefix.test(name)) prefixes.push({ prefix: name.slice(0, -1), weight })
    else return undefined
  }
  return prefixes.length > mostPrefixes ? undefined : { exact, prefixes }
}

/** The weight of an endpoint; undefined when the Service says nothing about it. */
export function weightOf(
  { exact, prefixes }: Weights,
  endpoint: { readonly ip: string; readonly podName: string | undefined },
): number | undefined {
  const { ip, podName: pod } = endpoint
  const known = exact.get(ip) ?? (pod === undefined ? undefined : exact.get(pod))
  return known ?? prefixes.find(({ prefix }) => pod?.startsWith(prefix))?.weight
}
