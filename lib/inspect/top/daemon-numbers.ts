/** One line of the text format of Prometheus. */
interface Sample {
  readonly name: string
  readonly labels: ReadonlyMap<string, string>
  readonly value: number
}

/** The counters of a service port in a proxy that sees every connection. */
export interface DaemonNumbers {
  readonly open: number
  readonly total: number
  readonly bytesIn: number
  readonly bytesOut: number
  readonly errors: number
}

type SomeNumbers = { readonly [Name in keyof DaemonNumbers]?: number | undefined }

/** Adds numbers of a service port; what nothing counts is zero. */
export function sumOf(one: SomeNumbers = {}, other: SomeNumbers = {}): DaemonNumbers {
  const sum = (name: keyof DaemonNumbers) => (one[name] ?? 0) + (other[name] ?? 0)
  return {
    open: sum('open'),
    total: sum('total'),
    bytesIn: sum('bytesIn'),
    bytesOut: sum('bytesOut'),
    errors: sum('errors'),
  }
}

const prefix = 'kubeproxy_'

/** By `namespace/name:port/PROTOCOL`, from a page of /metrics. */
export function daemonNumbers(page: string): ReadonlyMap<string, DaemonNumbers> {
  const services = new Map<string, DaemonNumbers>()
  for (const sample of samples(page)) {
    const { name, labels } = sample
    const service = labels.get('service')
    if (service === undefined || !name.startsWith(`${prefix}service_`)) continue
    const key = `${service}/${labels.get('protocol') ?? 'TCP'}`
    services.set(key, sumOf(services.get(key), numbersIn(sample)))
  }
  return services
}

function numbersIn({ name, labels, value }: Sample): SomeNumbers {
  switch (name.slice(prefix.length)) {
    case 'service_active_connections':
      return { open: value }
    case 'service_connections_total':
      return { total: value }
    case 'service_bytes_total':
      return labels.get('direction') === 'to_endpoint' ? { bytesIn: value } : { bytesOut: value }
    case 'service_dial_errors_total':
    case 'service_refused_connections_total':
    case 'service_dropped_connections_total':
      return { errors: value }
    default:
      return {}
  }
}

/**
 * Connections so far by endpoint, which is empty where the number is that of the whole service
 * port.
 */
export function connectionsIn(page: string, metric = 'service_connections_total') {
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
