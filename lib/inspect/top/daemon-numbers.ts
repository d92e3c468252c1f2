/** One line of the text format of Prometheus. */
interface Sample {
  readonly name: string
  readonly labels: ReadonlyMap<string, string>
  readonly value: number
}

/** The counters of a service port in a proxy that sees every connection. */
export interface DaemonNumbers {
  open: number
  connections: number
  bytesIn: number
  bytesOut: number
  errors: number
}

const prefix = 'kubeproxy_'

/** By `namespace/name:port/PROTOCOL`, from a page of /metrics. */
export function daemonNumbers(page: string): ReadonlyMap<string, DaemonNumbers> {
  const services = new Map<string, DaemonNumbers>()
  for (const { name, labels, value } of samples(page)) {
    const service = labels.get('service')
    if (service === undefined || !name.startsWith(`${prefix}service_`)) continue
    const key = `${service}/${labels.get('protocol') ?? 'TCP'}`
    const numbers = services.get(key) ?? {
      ...{ open: 0, connections: 0, bytesIn: 0, bytesOut: 0, errors: 0 },
    }
    services.set(key, numbers)
    switch (name.slice(prefix.length)) {
      case 'service_active_connections':
        numbers.open += value
        break
      case 'service_connections_total':
        numbers.connections += value
        break
      case 'service_bytes_total':
        if (labels.get('direction') === 'to_endpoint') numbers.bytesIn += value
        else numbers.bytesOut += value
        break
      case 'service_dial_errors_total':
      case 'service_refused_connections_total':
      case 'service_dropped_connections_total':
        numbers.errors += value
    }
  }
  return services
}

/** Connections so far to one endpoint of a service port. */
interface EndpointConnections {
  /** Empty where the number is that of the whole service port. */
  readonly endpoint: string
  readonly service: string
  readonly protocol: string
  readonly count: number
}

export function connectionsIn(
  page: string,
  metric = 'service_connections_total',
): readonly EndpointConnections[] {
  return [...samples(page)]
    .filter(({ name }) => name === `${prefix}${metric}`)
    .map(({ labels, value }) => ({
      endpoint: labels.get('endpoint') ?? '',
      service: labels.get('service') ?? '',
      protocol: labels.get('protocol') ?? '',
      count: value,
    }))
}

function* samples(page: string): Iterable<Sample> {
  for (const line of page.split('\n')) {
    const found = /^([a-z_]+)\{(.*)\} (\S+)$/.exec(line)
    if (!found) continue
    const [, name = '', labels = '', value = ''] = found
    const pairs = labels.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)
    yield {
      name,
      labels: new Map(Array.from(pairs, ([, key = '', text = '']) => [key, unescape(text)])),
      value: Number(value),
    }
  }
}

const unescape = (text: string) =>
  text.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char))
