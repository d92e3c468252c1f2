import { collectionOf } from '../resources.js'
import type { StoreEvent } from '../store.js'
import {
  keyOf,
  kindsOf,
  runController,
  type Controller,
  type ControllerDeps,
} from './controller.js'

/** A real server forgets Events after an hour; here their number is what must not grow. */
const longest = 1000

/** Removes the oldest Events once there are too many. */
export function eventExpiry(deps: ControllerDeps): Controller {
  const { registry } = deps
  return {
    async run(signal) {
      const events = kindsOf(registry, { events: ['v1', 'Event'] })?.events
      if (events === undefined) return
      const collection = collectionOf(events)
      /** Keys in the order of arrival. */
      const keys = new Set<string>()
      const note = ({ type, object }: StoreEvent) => {
        if (type === 'DELETED') keys.delete(keyOf(object))
        else keys.add(keyOf(object))
        return keys.size > longest ? ['expire'] : []
      }
      const expire = () => {
        for (const key of [...keys].slice(0, keys.size - longest)) {
          const event = registry.store.get(collection, key)
          if (event) registry.delete(events, event.metadata.namespace, event.metadata.name)
        }
      }
      await runController(deps, [{ kind: events, keysOf: note }], expire, signal)
    },
  }
}
