import { at, textAt } from '../json.js'
import type { KubeObject } from '../object.js'

/** How many pods there may be while old ones are replaced, and how many of them have to be ready. */
export interface Pace {
  readonly most: number
  readonly fewest: number
}

/** Percent of the pods. */
const byDefault = 25

/** As Kubernetes reckons it: with fewer than four pods there is one more, and none is missing. */
export function paceOf(deployment: KubeObject, wanted: number, old: number): Pace {
  if (textAt(deployment, 'spec', 'strategy', 'type') === 'Recreate') {
    return { most: old === 0 ? wanted : 0, fewest: 0 }
  }
  const part = (key: string, round: (value: number) => number) => {
    const given = at(deployment, 'spec', 'strategy', 'rollingUpdate', key)
    if (typeof given === 'number') return given
    const percent = typeof given === 'string' ? Number.parseInt(given, 10) : NaN
    return round((wanted * (Number.isNaN(percent) ? byDefault : percent)) / 100)
  }
  const surge = part('maxSurge', Math.ceil)
  const missing = part('maxUnavailable', Math.floor)
  // Without room above and below, nothing would ever move.
  return { most: wanted + surge, fewest: wanted - (surge + missing === 0 ? 1 : missing) }
}
