import type { PageCommand } from '../page-command.js'
import type { ObjectLine, View } from '../view.js'

/** Connects the page with its source: a server, or a cluster in this browser. */
export interface PageLink {
  /** Resolves to the reason of a refusal, or to undefined when the command is done. */
  perform(command: PageCommand): Promise<string | undefined>
  /** An object as YAML; undefined if the source does not give it. */
  yaml(line: ObjectLine): Promise<string | undefined>
  /** True if the cluster runs in this browser, where no other page shows or changes it. */
  readonly isLocal: boolean
  /** Calls `show` with every new view, and `lost` with a reason while no views come. */
  follow(show: (view: View) => void, lost: (words: string) => void): void
}

let current: PageLink | undefined

/** Called once, before anything is shown. */
export function useLink(link: PageLink): void {
  current = link
}

export function link(): PageLink {
  if (!current) throw new Error('use the page: it has no link yet')
  return current
}
