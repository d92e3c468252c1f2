import { counted } from '../../state/names.js'
import { optionPrefix, readAnnotation } from '../../state/annotations.js'
import { balanceText } from '../../state/balance.js'
import { checkText, endpointCheckOf } from '../../state/endpoint-check.js'
import {
  firstByteAnnotation,
  keepAliveAnnotation,
  maxConnectionsAnnotation,
  proxyProtocolAnnotation,
  removalAnnotation,
} from '../../state/connection-annotations.js'
import type { DesiredService } from '../../state/desired-state.js'
import { isProxyMode, type ModeName } from '../../config/config.js'

/** What affinity and the annotations of a Service do to its connections on this node. */
export function optionLines(service: DesiredService, mode: ModeName): readonly string[] {
  const { balance, unsupported = [] } = service
  const lines = [
    ...affinityLines(service),
    ...(balance ? [`Chosen by annotation ${balanceText(balance)}.`] : []),
    ...unsupported.map((text) => `The ${text}.`),
    ...checkLines(service),
    ...removalLines(service, mode),
    ...(isProxyMode(mode) ? headerLines(service) : []),
    ...(isProxyMode(mode) && service.protocol === 'TCP' ? proxyLines(service) : []),
  ]
  return lines.length > 0 ? ['', ...lines] : []
}

function affinityLines({ affinitySeconds }: DesiredService): readonly string[] {
  if (affinitySeconds === undefined) return []
  return [
    `Session affinity: a client comes back to its endpoint until it was away for ${affinitySeconds} s; the ways above are those of a client that is new.`,
  ]
}

/** What {@link optionLines} says of annotations that the mode cannot do. */
export function lackingTexts({ balance, unsupported = [] }: DesiredService): readonly string[] {
  return [...(balance?.why === undefined ? [] : [balanceText(balance)]), ...unsupported]
}

const seconds = (ms: number) => `${ms / 1000}s`

const by = (name: string) => `(annotation ${optionPrefix}${name})`

function checkLines({ options, protocol }: DesiredService): readonly string[] {
  const check = endpointCheckOf(options, protocol)
  const from = by('health-check')
  if (check) {
    const { intervalMs, fall, keepsLast } = check
    const last = keepsLast ? 'all are used' : 'none is used'
    return [
      `Endpoints are checked by ${checkText(check)} every ${seconds(intervalMs)}, and left out after failing ${fall === 1 ? 'once' : `${fall} times in a row`}; if all fail, ${last} ${from}.`,
    ]
  }
  return endpointCheckOf(options, 'TCP')
    ? [`Endpoints are not checked: checks use TCP, and this names no port for them ${from}.`]
    : []
}

function removalLines({ options, protocol }: DesiredService, mode: ModeName): readonly string[] {
  const policy = readAnnotation(options, removalAnnotation)
  // IPVS cannot do it, which the sentences about the mode say.
  if (!policy || protocol !== 'TCP' || mode === 'ipvs') return []
  const from = by(removalAnnotation.name)
  const { resetAfterMs } = policy
  if (resetAfterMs === undefined) return [`Connections go on when their endpoint leaves ${from}.`]
  const when = `${seconds(resetAfterMs)} after their endpoint left`
  if (isProxyMode(mode)) return [`Connections are reset ${when} ${from}.`]
  const whose = mode === 'ebpf' ? ' of other machines' : ''
  return [`The kernel forgets connections${whose} ${when} ${from}.`]
}

function headerLines({ options, protocol }: DesiredService): readonly string[] {
  const version = readAnnotation(options, proxyProtocolAnnotation)
  if (version === undefined || protocol === 'SCTP') return []
  const from = by(proxyProtocolAnnotation.name)
  if (protocol === 'TCP') {
    return [`Endpoints get the client's address in a PROXY header, ${version} ${from}.`]
  }
  return version === 'v2'
    ? [`Each datagram to an endpoint begins with a PROXY header, ${version} ${from}.`]
    : [`Datagrams have no PROXY header, because ${version} has no word for them ${from}.`]
}

function proxyLines({ options }: DesiredService): readonly string[] {
  const most = readAnnotation(options, maxConnectionsAnnotation)
  const silenceMs = readAnnotation(options, keepAliveAnnotation)
  const firstByteMs = readAnnotation(options, firstByteAnnotation)
  const asked =
    silenceMs === 0
      ? 'A silent peer is never asked whether it is still there'
      : `A peer that is silent for ${options[keepAliveAnnotation.name]} is asked whether it is still there, and reset 10s later`
  return [
    ...(most === undefined
      ? []
      : [
          `At most ${counted(most, 'connection')} from here to each endpoint ${by(maxConnectionsAnnotation.name)}.`,
        ]),
    ...(silenceMs === undefined ? [] : [`${asked} ${by(keepAliveAnnotation.name)}.`]),
    ...(firstByteMs === undefined
      ? []
      : [
          `An endpoint whose first byte takes longer than ${options[firstByteAnnotation.name]} is tried last for a while ${by(firstByteAnnotation.name)}.`,
        ]),
  ]
}
