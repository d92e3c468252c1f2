import { printable } from '../../state/names.js'
import type { FlowRecord } from './answer.js'

/** Connections as a table for people, line by line. */

/** Advice for a proxy that has no stream of connections. */
export const howToFollow = 'start it with --flows, or set flows.enabled in its configuration'

/** Names, with their width and their width in the wide form, which longer cells exceed. */
const columns = [
  ['TIME', 12, 24],
  ['CLIENT', 24, 40],
  ['SERVICE', 24, 32],
  ['ENDPOINT', 24, 40],
  ['VERDICT', 12, 12],
  ['DETAILS', 0, 0],
] as const

export function flowHead(isWide: boolean): string {
  return rowOf(
    columns.map(([name]) => name),
    isWide,
  )
}

/** How a line is shown: uncut, and with colours. */
interface FlowLook {
  readonly isWide: boolean
  readonly isColoured: boolean
}

export function flowText(flow: FlowRecord, { isWide, isColoured }: FlowLook): string {
  const { time, client, clientPod, service, protocol, endpoint, endpointPod, verdict } = flow
  return rowOf(
    [
      isWide ? time : time.slice(11, 23),
      client === '' ? '-' : named(client, clientPod, isWide),
      protocol === 'TCP' ? service : `${service}/${protocol}`,
      endpoint === '' ? '-' : named(endpoint, endpointPod, isWide),
      verdict,
      detailsOf(flow),
    ],
    isWide,
    isColoured ? (verdict === 'forwarded' ? green : red) : undefined,
  )
}

const green = '\u001b[32m'
const red = '\u001b[31m'
const verdictColumn = columns.findIndex(([name]) => name === 'VERDICT')

/** The pod if it is known. Where there is room, the address follows. */
function named(place: string, pod: string, isWide: boolean): string {
  if (pod === '') return place
  return isWide ? `${pod} (${place})` : pod
}

/** How a connection began or ended, in words. */
export function detailsOf({
  event,
  why,
  durationMs,
  bytesToEndpoint,
  bytesToClient,
}: Details): string {
  const parts = [event, why]
  if (durationMs !== undefined) parts.push(`${durationMs} ms`)
  if (bytesToEndpoint !== undefined && bytesToClient !== undefined) {
    parts.push(`${bytesToEndpoint} B out, ${bytesToClient} B back`)
  }
  return parts.filter((part) => part !== '').join(', ')
}

type Details = Omit<FlowRecord, 'time'>

function rowOf(cells: readonly string[], isWide: boolean, colour?: string): string {
  return cells
    .map((cell, index) => {
      const width = columns[index]?.[isWide ? 2 : 1] ?? 0
      const text = printable(cell)
      if (width === 0) return text
      const cut = isWide || text.length <= width ? text : `${text.slice(0, width - 1)}…`
      const full = cut.padEnd(width)
      return colour !== undefined && index === verdictColumn ? `${colour}${full}\u001b[0m` : full
    })
    .join('  ')
    .trimEnd()
}
