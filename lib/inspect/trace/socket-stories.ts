import { connectPlace } from '../../modes/ebpf/names.js'
import { connectionsIn } from '../top/daemon-numbers.js'
import { aSocket, type TraceStory } from './story.js'

/** What was asked to be traced, and the service port that answers there. */
export interface TracedService {
  /** `IP:PORT` */
  readonly target: string
  readonly isIp6: boolean
  /** `namespace/name:port` */
  readonly service: string
  readonly protocol: string
}

/**
 * The connections that socket programs translated between two pages of /metrics. No packet of such
 * a connection has the address that was asked for, so no rule shows it.
 */
export function socketStories(
  before: string,
  after: string,
  asked: TracedService,
): readonly TraceStory[] {
  const risen = (metric: string) => risenIn(before, after, metric, asked)
  return [
    ...risen('service_connections_total').map((endpoint) => translated(asked, endpoint, '')),
    ...risen('service_dial_errors_total').map((endpoint) =>
      translated(asked, endpoint, ', which did not answer'),
    ),
    ...risen('service_refused_connections_total').map(() => refused(asked)),
  ]
}

/** An endpoint for each connection that came in between. */
export function risenIn(
  before: string,
  after: string,
  metric: string,
  { service, protocol, isIp6 }: TracedService,
): readonly string[] {
  const own = (page: string) =>
    connectionsIn(page, metric).filter(
      (each) =>
        each.service === service &&
        each.protocol === protocol &&
        (each.endpoint === '' || each.endpoint.startsWith('[') === isIp6),
    )
  const old = new Map(own(before).map(({ endpoint, count }) => [endpoint, count]))
  return own(after).flatMap(({ endpoint, count }) =>
    Array.from({ length: Math.max(0, count - (old.get(endpoint) ?? 0)) }, () => endpoint),
  )
}

function translated(asked: TracedService, endpoint: string, ending: string): TraceStory {
  const why = `translated at ${callOf(asked)}: the socket went to ${endpoint}${ending}; its packets need no rule`
  return storyWith(asked, { why, end: 'sent', destination: endpoint })
}

function refused(asked: TracedService): TraceStory {
  const why = `no endpoints: ${callOf(asked)} failed with ECONNREFUSED, and no packet was sent`
  return storyWith(asked, { why, end: 'rejected', destination: asked.target })
}

/** The counters do not tell which of its two calls a UDP socket made. */
const callOf = ({ protocol }: TracedService) =>
  protocol === 'UDP' ? 'connect() or sendto()' : 'connect()'

function storyWith(
  { target, service }: TracedService,
  { why, ...rest }: Pick<TraceStory, 'end' | 'destination'> & { readonly why: string },
): TraceStory {
  const rule = `a frontend of ${service}`
  return {
    ...{ from: aSocket, to: target, inInterface: '', isMasqueraded: false, ...rest },
    hops: [{ where: `${connectPlace.kind} ${connectPlace.name}`, rule, why, owner: service }],
  }
}
