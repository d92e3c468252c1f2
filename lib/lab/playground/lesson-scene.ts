import type { PageCommand } from '../../page/page-command.js'
import type { PodView } from '../../page/view.js'

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
