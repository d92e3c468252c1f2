import { hostPort } from '../../state/ip.js'
import type { FlowRequest, FlowResult } from '../world/agent-protocol.js'
import type { Gauge } from './node-gauge.js'
import type { ClusterLayout } from './cluster-layout.js'

/** A request as the node sees it. */
interface Asked {
  readonly mode: string
  /** Where the sender is. */
  readonly addresses: readonly string[]
  readonly request: Pick<FlowRequest, 'protocol' | 'host' | 'port' | 'fromPort'>
}

/**
 * To which endpoints each request was sent that nobody answered, in turn; null where nothing tells. Rules leave it in
 * the table of connections. In userspace mode only kube-proxy knows, and it tries several.
 */
export async function sentTo(
  { layout, gauge }: { readonly layout: ClusterLayout; readonly gauge: Gauge },
  asked: Asked,
  results: readonly FlowResult[],
): Promise<readonly (readonly string[] | null)[]> {
  const isOpen = ({ outcome, tried }: FlowResult) => outcome !== 'reply' && tried === undefined
  const canTell = asked.mode !== 'userspace' && results.some(isOpen)
  const table = canTell ? (await gauge.ask({ ask: 'tracked' })).conntrack : undefined
  return results.map(({ tried, clientPort }) => {
    if (tried) return tried
    const port = clientPort ?? asked.request.fromPort
    if (table === undefined || port === undefined) return null
    return endpointsIn(table, asked, port, layout.addresses.node)
  })
}

function endpointsIn(
  table: string,
  { mode, addresses, request }: Asked,
  clientPort: number,
  ofNode: readonly string[],
): readonly string[] | null {
  const own = table.split('\n').flatMap((line) => {
    const fields = [...line.matchAll(/\b(src|dst|sport|dport)=(\S+)/g)].map(([, , value]) => value)
    // src dst sport dport of the request, then of the reply.
    const [source = '', destination = '', sport, port, ip = '', , answeringPort] = fields
    const isOwn =
      line.includes(` ${request.protocol.toLowerCase()} `) &&
      addresses.includes(source) &&
      Number(sport) === clientPort
    if (!isOwn) return []
    const isAsked = destination === request.host && Number(port) === request.port
    return [{ isAsked, ip, endpoint: hostPort(ip, Number(answeringPort)) }]
  })
  // A socket that ebpf mode translates asks the endpoint itself.
  const fitting = own.some(({ isAsked }) => isAsked) ? own.filter(({ isAsked }) => isAsked) : own
  const found = fitting.filter(({ ip }) => ip !== request.host && !ofNode.includes(ip))
  const endpoints = [...new Set(found.map(({ endpoint }) => endpoint))]
  if (endpoints.length === 1) return endpoints
  // What a rule drops or rejects is never tracked. IPVS and sockets may send without a trace.
  const isTraced = mode === 'iptables' || mode === 'nftables'
  return endpoints.length === 0 && isTraced ? [] : null
}
