import { optionPrefix, readAnnotation } from '../../state/annotations.js'
import { balanceText } from '../../state/balance.js'
import {
  firstByteAnnotation,
  keepAliveAnnotation,
  maxConnectionsAnnotation,
  proxyProtocolAnnotation,
} from '../../state/connection-annotations.js'
import type { DesiredService } from '../../state/desired-state.js'
import { isProxyMode, type ModeName } from '../../config/config.js'

/** What the annotations of a Service do to its connections on this node. */
export function optionLines(service: DesiredService, mode: ModeName): readonly string[] {
  const { balance, unsupported = [] } = service
  const lines = [
    ...(balance ? [`Chosen by annotation ${balanceText(balance)}.`] : []),
    ...unsupported.map((text) => `The ${text}.`),
    ...(isProxyMode(mode) ? headerLines(service) : []),
    ...(isProxyMode(mode) && service.protocol === 'TCP' ? proxyLines(service) : []),
  ]
  return lines.length > 0 ? ['', ...lines] : []
}

function headerLines({ options, protocol }: DesiredService): readonly string[] {
  const version = readAnnotation(options, proxyProtocolAnnotation)
  if (version === undefined || protocol === 'SCTP') return []
  const by = `(annotation ${optionPrefix}${proxyProtocolAnnotation.name})`
  if (protocol === 'TCP') {
    return [`Endpoints get the client's address in a PROXY header, ${version} ${by}.`]
  }
  return version === 'v2'
    ? [`Each datagram to an endpoint begins with a PROXY header, ${version} ${by}.`]
    : [`Datagrams have no PROXY header, because ${version} has no word for them ${by}.`]
}

function proxyLines({ options }: DesiredService): readonly string[] {
  const most = readAnnotation(options, maxConnectionsAnnotation)
  const silenceMs = readAnnotation(options, keepAliveAnnotation)
  const firstByteMs = readAnnotation(options, firstByteAnnotation)
  const by = ({ name }: { readonly name: string }) => ` (annotation ${optionPrefix}${name}).`
  const asked =
    silenceMs === 0
      ? 'A silent peer is never asked whether it is still there'
      : `A peer that is silent for ${options[keepAliveAnnotation.name]} is asked whether it is still there, and reset 10s later`
  return [
    ...(most === undefined
      ? []
      : [`At most ${most} connections from here to each endpoint${by(maxConnectionsAnnotation)}`]),
    ...(silenceMs === undefined ? [] : [`${asked}${by(keepAliveAnnotation)}`]),
    ...(firstByteMs === undefined
      ? []
      : [
          `An endpoint whose first byte takes longer than ${options[firstByteAnnotation.name]} is tried last for a while${by(firstByteAnnotation)}`,
        ]),
  ]
}
