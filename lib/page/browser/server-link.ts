import type { Frame, ServiceLine, View } from '../view.js'
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
    return response ? response.text() : 'The playground has ended.'
  },
  yaml: async (line) => {
    const query = new URLSearchParams({ ...line })
    const response = await fetch(`object?${query.toString()}`).catch(() => undefined)
    return response?.text()
  },
  isLocal: false,
  follow,
}

function follow(show: (view: View) => void, lost: (words: string) => void): void {
  const events = new EventSource('events')
  let latest: View | undefined
  /** By their keys; a frame holds those that have changed. */
  const services = new Map<string, ServiceLine>()
  events.addEventListener('open', () => {
    // The first frame of a connection holds everything.
    services.clear()
  })
  events.addEventListener('message', ({ data }: MessageEvent<string>) => {
    const { services: changes, ...parts } = JSON.parse(data) as Frame
    for (const line of changes?.set ?? []) services.set(line.key, line)
    for (const key of changes?.gone ?? []) services.delete(key)
    const lines = changes ? sorted(services.values()) : (latest?.services ?? [])
    // The first frame has every part.
    latest = { ...(latest as View), ...parts, services: lines }
    show(latest)
  })
  events.addEventListener('error', () =>
    lost(
      events.readyState === EventSource.CLOSED
        ? 'this page is not served: too many are open, or it needs a token; close one and load it again'
        : 'the playground has ended or does not answer; waiting for it …',
    ),
  )
}

export function sorted(lines: Iterable<ServiceLine>): readonly ServiceLine[] {
  return [...lines].sort((a, b) => (a.key < b.key ? -1 : 1))
}
