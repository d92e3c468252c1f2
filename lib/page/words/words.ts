/** What one line of a ruleset means, for somebody who reads it for the first time. */
export interface LineWords {
  /** One plain sentence. */
  readonly words: string
  /** The object, and its field where one is to blame, that made the line. */
  readonly object: string
}

/** What is known around the lines. */
export interface Surroundings {
  /** Name of the pod at an address. */
  readonly podAt: (ip: string) => string | undefined
  /** `namespace/name` of the Service whose lines these are, where they are of one only. */
  readonly owner?: string
}

export const nobodyKnown: Surroundings = { podAt: () => undefined }

export function fixedOf(mode: string): string {
  return `${mode} mode itself, whatever Services there are`
}

/** `10.244.1.21:8080`, with the pod that is there. */
export function endpointWords(endpoint: string, { podAt }: Surroundings): string {
  const pod = podAt(endpoint.slice(0, endpoint.lastIndexOf(':')).replace(/^\[|\]$/g, ''))
  return pod === undefined ? `endpoint ${endpoint}` : `pod ${pod} at ${endpoint}`
}

/** `default/web:http` as the object it is a port of. */
export function serviceOf(portName: string, field = ''): string {
  const [name = '', port = ''] = portName.split(':')
  const part = port === '' ? '' : `, port ${port}`
  return `Service ${name}${part}${field === '' ? '' : `: ${field}`}`
}

export function percent(share: number): string {
  const value = share * 100
  return `${Number.isInteger(value) ? value : value.toFixed(1)} %`
}

/** Words joined as in a sentence: `a, b and c`. */
export function listed(words: readonly string[]): string {
  const last = words.at(-1) ?? ''
  return words.length < 2 ? last : `${words.slice(0, -1).join(', ')} and ${last}`
}
