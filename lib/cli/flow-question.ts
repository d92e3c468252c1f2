import { counted } from '../state/names.js'
import { ConfigError } from '../errors.js'
import { rangeOf } from '../observe/flows/flow-log.js'
import { given, wholeNumber } from './shared-options.js'
import type { FlowVerdict } from '../observe/flows/line.js'

/** What `flows` asks a proxy, and notes about its answer: on the node and in the plug-in of kubectl. */

/** The question to a proxy. */
interface WantedFlows {
  readonly service: string | undefined
  readonly from: string | undefined
  readonly verdict: FlowVerdict | undefined
  /** As the user wrote it. */
  readonly limit: string
}

export function flowsQuery({ service, from, verdict, limit }: WantedFlows): URLSearchParams {
  wholeNumber('--limit', limit, 0, 9999)
  if (from?.split(',').every(isClient) === false) {
    throw new ConfigError(
      `--from: ${JSON.stringify(from)} is no address, no CIDR, and no pod, such as web-1 or default/web-1`,
    )
  }
  return new URLSearchParams(given({ service, from, verdict, limit }))
}

/**
 * Names of namespaces have no dots, so a CIDR with a wrong length is not taken for a pod. Nor is 10.244.1.300.
 */
function isClient(text: string): boolean {
  const isPod = /^([a-z0-9-]+\/)?[a-z0-9][a-z0-9.-]*$/.test(text) && !/^[\d.]+$/.test(text)
  return isPod || rangeOf(text) !== undefined
}

/** Says on standard error why the table is empty: perhaps a name is wrong, or not known to the proxy. */
export function noteNone({ service, from }: Partial<WantedFlows>): void {
  const hint = service === undefined ? '' : `; is the name ${JSON.stringify(service)} right?`
  const pods = from?.split(',').some((client) => rangeOf(client) === undefined) === true
  const advice = pods
    ? '; --from finds a pod by its name only while an EndpointSlice names it: give its address'
    : ''
  process.stderr.write(`no such connection so far${hint}${advice}\n`)
}

/** Prints on standard error, so that every line on standard output is a connection. */
export function noteLeftOut(count: number): void {
  if (count > 0)
    process.stderr.write(
      `… and ${counted(count, 'line')} that ${count === 1 ? 'was' : 'were'} left out under load\n`,
    )
}
