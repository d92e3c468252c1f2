import { pause } from '../../async.js'
import { ConfigError } from '../../errors.js'
import { lessons, type Lesson } from './lessons.js'
import type { PageCommand } from '../../page/page-command.js'
import type { PodView } from '../../page/view.js'

/** The lesson with this id; undefined for the empty id. Throws ConfigError for unknown ids. */
export function lessonOf(id: string): Lesson | undefined {
  const lesson = lessons.find((each) => each.id === id)
  if (!lesson && id !== '') throw new ConfigError(`begin lesson ${id}: there is no such lesson`)
  return lesson
}

/** Commands before a lesson or an exercise, without modes that cannot run here or run already. */
export function sceneOf(
  scene: readonly PageCommand[],
  { modes, mode }: { readonly modes: readonly string[]; readonly mode: string },
): readonly PageCommand[] {
  return [...usual, ...scene].filter(
    (command) => command.do !== 'mode' || (modes.includes(command.mode) && command.mode !== mode),
  )
}

/** Every lesson and every exercise begins with these. */
const usual: readonly PageCommand[] = [
  { do: 'sender', sender: 'client-pod' },
  { do: 'target', target: 'ClusterIP' },
]

/** Pods of other Deployments are the user's own. */
const ours = (pods: readonly PodView[]) => pods.filter(({ name }) => /^(?:web|worker)-/.test(name))

/**
 * Whether so many pods are here, each in one of these states, and no other one, such as one that
 * terminates.
 */
export function areHere(
  pods: readonly PodView[],
  count: number,
  ...states: readonly PodView['state'][]
): boolean {
  const own = ours(pods)
  return own.length === count && own.every(({ state }) => states.includes(state))
}

/** Waits until `isTrue`, but not for ever. */
export async function untilTrue(isTrue: () => boolean, signal: AbortSignal): Promise<void> {
  const deadline = Date.now() + patienceMs
  while (!isTrue() && Date.now() < deadline && !signal.aborted) await pause(askMs, signal)
}

const askMs = 50
const patienceMs = 60_000
