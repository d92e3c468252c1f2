import { pause } from '../../async.js'
import { ConfigError } from '../../errors.js'
import { lessons, type Lesson } from './lessons.js'
import type { PageCommand, PodView } from '../../page/view.js'

/** The lesson with this id; undefined for the empty one, which is none. Throws ConfigError for others. */
export function lessonOf(id: string): Lesson | undefined {
  const lesson = lessons.find((each) => each.id === id)
  if (!lesson && id !== '') throw new ConfigError(`begin lesson ${id}: there is no such lesson`)
  return lesson
}

/** What is done before a lesson begins, as far as it can be done here and is not so already. */
export function sceneOf(
  { scene = [] }: Lesson,
  { modes, mode }: { readonly modes: readonly string[]; readonly mode: string },
): readonly PageCommand[] {
  return [...usual, ...scene].filter(
    (command) => command.do !== 'mode' || (modes.includes(command.mode) && command.mode !== mode),
  )
}

/** Every lesson begins with these. */
const usual: readonly PageCommand[] = [
  { do: 'sender', sender: 'client-pod' },
  { do: 'target', target: 'ClusterIP' },
]

export function areReady(pods: readonly PodView[], count: number): boolean {
  return pods.length === count && pods.every(({ state }) => state === 'ready')
}

/** Waits until it is true, but not for ever. */
export async function untilTrue(isTrue: () => boolean, signal: AbortSignal): Promise<void> {
  const deadline = Date.now() + patienceMs
  while (!isTrue() && Date.now() < deadline && !signal.aborted) await pause(askMs, signal)
}

const askMs = 50
const patienceMs = 15_000
