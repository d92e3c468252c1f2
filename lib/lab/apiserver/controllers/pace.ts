import { at, textAt } from '../json.js'
import type { KubeObject } from '../object.js'

/** How many pods there may be while old ones are replaced, and how many of them have to be ready. */
export interface Pace {
  readonly most: number
  readonly fewest: number
}

/** The default of maxSurge and maxUnavailable, in percent of the pods. */
const byDefault = 25

/** Rounds like Kubernetes: by default, fewer than four pods get one more, and none is missing. */
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
  // If both are 0, no pod could ever be replaced.
  return { most: wanted + surge, fewest: wanted - (surge + missing === 0 ? 1 : missing) }
}
