export const protocols = ['TCP', 'UDP', 'SCTP'] as const

export type Protocol = (typeof protocols)[number]

/** Names one port of one Service, which is what a proxy serves (S01). */
export interface ServicePortName {
  readonly namespace: string
  readonly name: string
  /** The port's name, empty for the only port of a Service. */
  readonly port: string
  readonly protocol: Protocol
}

/** `namespace/name:port`, or `namespace/name` for a port without a name. */
export function portNameOf(name: ServicePortName): string {
  const service = `${name.namespace}/${name.name}`
  return name.port === '' ? service : `${service}:${name.port}`
}

/** The key of a service port in a state: `namespace/name:port/PROTOCOL`. */
export function keyOf(name: ServicePortName): string {
  return `${portNameOf(name)}/${name.protocol}`
}
