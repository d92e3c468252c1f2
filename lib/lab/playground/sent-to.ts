import { hostPort } from '../../state/ip.js'
import type { TrackedFlow } from '../../kernel/flow-message.js'
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
  const flows = canTell ? (await gauge.ask({ ask: 'tracked' })).tracked : undefined
  return results.map(({ tried, clientPort }) => {
    if (tried) return tried
    const port = clientPort ?? asked.request.fromPort
    if (flows === undefined || port === undefined) return null
    return endpointsIn(flows, asked, port, layout.addresses.node)
  })
}

function endpointsIn(
  flows: readonly TrackedFlow[],
  { mode, addresses, request }: Asked,
  clientPort: number,
  ofNode: readonly string[],
): readonly string[] | null {
  const { protocol, host, port } = request
  const own = flows.filter(
    (flow) =>
      flow.protocol === protocol &&
      addresses.includes(flow.source.ip) &&
      flow.source.port === clientPort,
  )
  const toService = own.filter(({ destination: to }) => to.ip === host && to.port === port)
  // A socket that ebpf mode translates asks the endpoint itself.
  const fitting = toService.length > 0 ? toService : own
  const found = fitting.filter(({ answeredBy: { ip } }) => ip !== host && !ofNode.includes(ip))
  const endpoints = [...new Set(found.map(({ answeredBy: by }) => hostPort(by.ip, by.port)))]
  if (endpoints.length === 1) return endpoints
  // What a rule drops or rejects is never tracked. IPVS and sockets may send without a trace.
  const isTraced = mode === 'iptables' || mode === 'nftables'
  return endpoints.length === 0 && isTraced ? [] : null
}
