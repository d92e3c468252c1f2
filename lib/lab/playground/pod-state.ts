import { textAt } from '../apiserver/json.js'
import { isReady, type KubeObject } from '../apiserver/object.js'
import type { PodView } from '../../page/view.js'

/** How a learner tells a pod what to do, from the page or with `kubectl annotate pod`. */
export const processAnnotation = 'playground/process'
export const readyAnnotation = 'playground/ready'

/** What the annotations of a pod wish for. */
export interface PodWish {
  /** Its process serves. */
  readonly runs: boolean
  /** It says so to whoever asks for its readiness. */
  readonly isReady: boolean
}

export function podWishOf(pod: KubeObject | undefined): PodWish {
  const wish = (key: string) => pod && textAt(pod, 'metadata', 'annotations', key)
  const runs = wish(processAnnotation) !== 'stopped'
  return { runs, isReady: runs && wish(readyAnnotation) !== 'false' }
}

export function podStateOf(pod: KubeObject): PodView['state'] {
  if (pod.metadata.deletionTimestamp !== undefined) return 'terminating'
  const wish = podWishOf(pod)
  if (!wish.runs) return 'stopped'
  if (isReady(pod)) return 'ready'
  return wish.isReady ? 'starting' : 'not ready'
}
