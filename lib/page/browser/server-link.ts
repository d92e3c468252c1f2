import type { Changes, FlowView, Frame, ServiceLine, View } from '../view.js'
import type { PageLink } from './link.js'

/** The link to the server that this page was loaded from. */
export const serverLink: PageLink = {
  perform: async (command) => {
    const response = await fetch('command', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(command),
    }).catch(() => undefined)
    if (response?.ok) return undefined
    // Words that stay true when the page is followed all the while.
    return response?.text() ?? 'the server of this page did not answer; try it again'
  },
  yaml: async (line) => {
    const query = new URLSearchParams({ ...line })
    const response = await fetch(`object?${query.toString()}`).catch(() => undefined)
    // Other texts say why there is no object.
    return response?.ok ? response.text() : undefined
  },
  isLocal: false,
  follow,
}

/**
 * Follows while the page is seen. Hidden pages would keep the server at work, and six of them would
 * use all connections that a browser makes to it.
 */
function follow(show: (view: View) => void, lost: (words: string) => void): void {
  let events: EventSource | undefined
  const turn = () => {
    events?.close()
    events = document.hidden ? undefined : followNow(show, lost)
  }
  document.addEventListener('visibilitychange', turn)
  turn()
}

function followNow(show: (view: View) => void, lost: (words: string) => void): EventSource {
  const events = new EventSource('events')
  let latest: View | undefined
  const services = new KeptLines<ServiceLine>(sorted)
  const flows = new KeptLines<FlowView>(newestFirst)
  events.addEventListener('open', () => {
    // The first frame of a connection holds everything.
    services.clear()
    flows.clear()
  })
  events.addEventListener('message', ({ data }: MessageEvent<string>) => {
    const { services: changed, flows: heard, ...parts } = JSON.parse(data) as Frame
    const lines = { services: services.after(changed), flows: flows.after(heard) }
    // The first frame has every part.
    latest = { ...(latest as View), ...parts, ...lines }
    show(latest)
  })
  events.addEventListener('error', () =>
    lost(
      events.readyState === EventSource.CLOSED
        ? 'the server refuses this page: too many pages are open, or it needs a token; close one and load it again'
        : 'the server of this page has ended or does not answer; waiting for it …',
    ),
  )
  return events
}

/** Lines by their keys; a frame holds those that have changed. */
class KeptLines<Line extends { readonly key: string }> {
  readonly #order: (lines: Iterable<Line>) => readonly Line[]
  readonly #lines = new Map<string, Line>()
  /** The same list until something changes. */
  #ordered: readonly Line[] = []

  constructor(order: (lines: Iterable<Line>) => readonly Line[]) {
    this.#order = order
  }

  clear(): void {
    this.#lines.clear()
  }

  after(changes: Changes<Line> | undefined): readonly Line[] {
    if (!changes) return this.#ordered
    for (const line of changes.set) this.#lines.set(line.key, line)
    for (const key of changes.gone) this.#lines.delete(key)
    this.#ordered = this.#order(this.#lines.values())
    return this.#ordered
  }
}

export function newestFirst(lines: Iterable<FlowView>): readonly FlowView[] {
  return [...lines].sort((a, b) => Number(b.key) - Number(a.key))
}

export function sorted(lines: Iterable<ServiceLine>): readonly ServiceLine[] {
  return [...lines].sort((a, b) => (a.key < b.key ? -1 : 1))
}
