import { addressOf } from '../../state/ip.js'

/** The meaning of one line of a ruleset, for a new reader. */
export interface LineWords {
  /** One plain sentence. */
  readonly words: string
  /** The object that the line comes from, with the field if there is one. */
  readonly object: string
}

/** Facts that the words use. */
export interface Surroundings {
  /** Name of the pod at an address. */
  readonly podAt: (ip: string) => string | undefined
  /** `namespace/name` of the Service, if all lines belong to one. */
  readonly owner?: string
}

export function fixedOf(mode: string): string {
  return `${mode} mode itself, not a Service`
}

/** `10.244.1.21:8080`, with the name of its pod. */
export function endpointWords(endpoint: string, { podAt }: Surroundings): string {
  const pod = podAt(addressOf(endpoint))
  return pod === undefined ? `endpoint ${endpoint}` : `pod ${pod} at ${endpoint}`
}

/** The Service of a port name such as `default/web:http`, in words. */
export function serviceOf(portName: string, field = ''): string {
  const [name = '', port = ''] = portName.split(':')
  const part = port === '' ? '' : `, port ${port}`
  return `Service ${name}${part}${field === '' ? '' : `: ${field}`}`
}

export function percent(share: number): string {
  const value = Math.round(share * 1000) / 10
  return `${Number.isInteger(value) ? value : value.toFixed(1)} %`
}

/** Words joined as in a sentence: `a, b and c`. */
export function listed(words: readonly string[]): string {
  const last = words.at(-1) ?? ''
  return words.length < 2 ? last : `${words.slice(0, -1).join(', ')} and ${last}`
}
