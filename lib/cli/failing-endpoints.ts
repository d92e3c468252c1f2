import { asArray, asObject, asString } from '../state/json.js'
import type { EndpointFailure } from '../state/endpoint-health.js'
import type { Protocol } from '../state/names.js'

const protocols: readonly Protocol[] = ['TCP', 'UDP', 'SCTP']

/**
 * What `/failing-endpoints` of the running proxy says. An answer that makes no sense says nothing:
 * another program, or another version, may have the port.
 */
export function failingEndpoints(text: string): readonly EndpointFailure[] {
  return (asArray(parsed(text)) ?? []).flatMap((item) => {
    const line = asObject(item)
    const port = asObject(line?.port)
    const [namespace, name, portName, endpoint, reason] = [
      ...[port?.namespace, port?.name, port?.port, line?.endpoint, line?.reason].map(asString),
    ]
    const protocol = protocols.find((each) => each === port?.protocol)
    if (namespace === undefined || name === undefined || portName === undefined) return []
    if (endpoint === undefined || reason === undefined || !protocol) return []
    return [{ port: { namespace, name, port: portName, protocol }, endpoint, reason }]
  })
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
