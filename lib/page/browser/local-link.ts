import { newestFirst, sorted } from './server-link.js'
import type { PageCommand } from '../page-command.js'
import type { FlowView, ObjectLine, ServiceLine, View } from '../view.js'
import type { PageLink } from './link.js'

/** A source of views that runs in this browser, too. */
interface LocalSource {
  view(): Omit<View, 'services' | 'flows'> & {
    readonly services: { values(): Iterable<ServiceLine> }
    readonly flows: { values(): Iterable<FlowView> }
  }
  /** Calls back after every change. */
  subscribe(listener: () => void): () => void
  perform(command: PageCommand): Promise<void>
  yaml(line: ObjectLine): string | undefined
}

/** The least time between two views. Traffic changes the view all the time; nobody reads faster. */
const frameMs = 50

/** The link to a source in this browser; `parse` reads commands as a server does. */
export function localLink(
  source: LocalSource,
  parse: (body: string) => PageCommand | undefined,
): PageLink {
  return {
    perform: async (command) => {
      // The address of the page may ask for anything.
      const text = JSON.stringify(command)
      const known = parse(text)
      if (!known) return `the page has no such command: ${text.slice(0, 100)}`
      try {
        await source.perform(known)
        return undefined
      } catch (error) {
        return error instanceof Error ? error.message : String(error)
      }
    },
    yaml: (line) => Promise.resolve(source.yaml(line)),
    isLocal: true,
    follow: (show) => {
      let timer: number | undefined
      const tell = () => {
        timer = undefined
        const { services, flows, ...view } = source.view()
        const lines = { services: sorted(services.values()), flows: newestFirst(flows.values()) }
        show({ ...view, ...lines })
      }
      source.subscribe(() => {
        timer ??= setTimeout(tell, frameMs)
      })
      tell()
    },
  }
}
