import { textAt } from '../apiserver/json.js'
import { isReady, type KubeObject } from '../apiserver/object.js'
import type { PodView } from '../../page/view.js'

/**
 * The annotations with which a learner controls a pod, from the page or with `kubectl annotate
 * pod`.
 */
export const processAnnotation = 'playground/process'
export const readyAnnotation = 'playground/ready'

/** What the annotations of a pod ask for. */
interface PodWish {
  /** Its process serves. */
  readonly runs: boolean
  /** Its machine lost its power: nothing answers any more, and nobody has noticed. */
  readonly isDark: boolean
  /** It answers its readiness probe. */
  readonly isReady: boolean
}

export function podWishOf(pod: KubeObject | undefined): PodWish {
  const wish = (key: string) => pod && textAt(pod, 'metadata', 'annotations', key)
  const process = wish(processAnnotation)
  const runs = process !== 'stopped'
  return { runs, isDark: process === 'dark', isReady: runs && wish(readyAnnotation) !== 'false' }
}

/** How the page and the pod itself call it: with its namespace, unless that is the usual one. */
export function podNameOf({ metadata: { namespace = 'default', name } }: KubeObject): string {
  return namespace === 'default' ? name : `${namespace}/${name}`
}

export function podStateOf(pod: KubeObject): PodView['state'] {
  if (pod.metadata.deletionTimestamp !== undefined) return 'terminating'
  const wish = podWishOf(pod)
  if (!wish.runs) return 'stopped'
  if (isReady(pod)) return 'ready'
  return wish.isReady ? 'starting' : 'not ready'
}
