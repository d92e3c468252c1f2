import type { PageCommand } from '../page-command.js'
import type { ObjectLine, View } from '../view.js'

/** How the page reaches what it shows and controls. */
export interface PageLink {
  /** Why the command was refused, or undefined when it is done. */
  perform(command: PageCommand): Promise<string | undefined>
  /** An object as YAML; undefined when it cannot be had. */
  yaml(line: ObjectLine): Promise<string | undefined>
  /** What it shows is in this browser, and of this browser alone. */
  readonly isLocal: boolean
  /** Tells every new view, and in words when there are none for now. */
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
