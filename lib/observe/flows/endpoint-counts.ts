import type { FlowCounters } from '../../kernel/flow-message.js'
import type { CountedPort } from './messages.js'

const fields = ['bytesToEndpoint', 'bytesToClient', 'packetsToEndpoint', 'packetsToClient'] as const

export const noCounters = (): FlowCounters => ({
  ...{ bytesToEndpoint: 0, bytesToClient: 0, packetsToEndpoint: 0, packetsToClient: 0 },
})

export function addTo(sum: FlowCounters, more: FlowCounters): void {
  sum.bytesToEndpoint += more.bytesToEndpoint
  sum.bytesToClient += more.bytesToClient
  sum.packetsToEndpoint += more.packetsToEndpoint
  sum.packetsToClient += more.packetsToClient
}

/** What has been added since. Nothing becomes less: another file may have taken the place. */
export function subtractFrom(sum: FlowCounters, less: FlowCounters): void {
  for (const field of fields) sum[field] = Math.max(0, sum[field] - less[field])
}

/** What one endpoint of a service port has got. */
export class EndpointCounts {
  opened = 0
  readonly ended = noCounters()
  /** What all connections had carried when the kernel's table was read. */
  atListing = noCounters()
  open = 0
  /** How many connections the kernel's table had, with those that only wait to be forgotten. */
  listed = 0
  /** Whether the Service has this endpoint, as far as is known. */
  isPresent = true
  readonly endpoint: string
  #hasLeft = false
  #reported = { opened: 0, ...noCounters() }

  constructor(endpoint: string) {
    this.endpoint = endpoint
  }

  /** Adds what others have counted. */
  add(opened: number, ended: FlowCounters): void {
    this.#hasLeft = false
    this.opened += opened
    addTo(this.ended, ended)
  }

  /** Those others have told that it left, and that they count no more. */
  leave(): void {
    this.#hasLeft = true
  }

  /** Whether nothing comes any more. `isWhole`: the kernel's table has been read as a whole. */
  isOver(isWhole: boolean): boolean {
    return this.#hasLeft || (isWhole && !this.isPresent && this.listed === 0)
  }

  /** The kernel's table has been read: this is what it has. */
  beginListed(): void {
    this.atListing = { ...this.ended }
    this.open = this.listed = 0
  }

  /** Undefined when nothing has grown. A connection that ended unseen takes nothing away again. */
  take(): (FlowCounters & { readonly opened: number }) | undefined {
    const before = this.#reported
    const now = { opened: this.opened, ...noCounters() }
    for (const field of fields) {
      now[field] = Math.max(before[field], this.ended[field], this.atListing[field])
    }
    this.#reported = now
    const growth = { opened: now.opened - before.opened, ...noCounters() }
    for (const field of fields) growth[field] = now[field] - before[field]
    return growth.opened > 0 || fields.some((field) => growth[field] > 0) ? growth : undefined
  }
}

export interface CountedService extends CountedPort {
  /** How many families serve it. */
  families: number
  isGone: boolean
  refused: number
  dropped: number
  /** The part of them that the last report had. */
  reported: { readonly refused: number; readonly dropped: number }
  /** How many connections were open in the last report. */
  reportedOpen?: number
  readonly endpoints: Map<string | number, EndpointCounts>
}

/** A connection in the kernel's table. It is kept only while the table is read. */
export interface Listed extends FlowCounters {
  readonly counts: EndpointCounts
  readonly isOpen: boolean
}

/** The kernel's table has been read as a whole, and has these connections. */
export function setListed(services: Iterable<CountedService>, listed: Iterable<Listed>): void {
  for (const { endpoints } of services) {
    for (const counts of endpoints.values()) counts.beginListed()
  }
  for (const { counts, isOpen, ...numbers } of listed) {
    addTo(counts.atListing, numbers)
    counts.listed++
    if (isOpen) counts.open++
  }
}
