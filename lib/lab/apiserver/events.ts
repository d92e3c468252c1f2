import type { KubeObject } from './object.js'

/** A second version of a kind, stored in the form of the first. */
export interface StoredForm {
  /** The collection of the first version. */
  readonly collection: string
  readonly toStored: (object: KubeObject) => KubeObject
  readonly fromStored: (object: KubeObject) => KubeObject
}

/** Fields of events.k8s.io/v1 and what they are called in v1; the others have one name. */
const renamed: readonly (readonly [current: string, stored: string])[] = [
  ['regarding', 'involvedObject'],
  ['note', 'message'],
  ['reportingController', 'reportingComponent'],
  ['deprecatedSource', 'source'],
  ['deprecatedFirstTimestamp', 'firstTimestamp'],
  ['deprecatedLastTimestamp', 'lastTimestamp'],
  ['deprecatedCount', 'count'],
]

/** Events are one set of objects in two API groups: written in one, read in the other. */
export const eventForm: StoredForm = {
  collection: 'events',
  toStored: (object) => ({ ...rename(object, new Map(renamed)), apiVersion: 'v1' }),
  fromStored: (object) => ({
    ...rename(object, new Map(renamed.map(([current, stored]) => [stored, current]))),
    apiVersion: 'events.k8s.io/v1',
  }),
}

function rename(object: KubeObject, names: ReadonlyMap<string, string>): KubeObject {
  const { kind, apiVersion, metadata, ...rest } = object
  const entries = Object.entries(rest).map(
    ([field, value]) => [names.get(field) ?? field, value] as const,
  )
  return { kind, apiVersion, metadata, ...Object.fromEntries(entries) }
}
