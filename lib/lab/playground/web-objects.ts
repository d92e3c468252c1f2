import type { JsonObject } from '../apiserver/json.js'
import type { NewObject } from '../apiserver/object.js'

export const webLabels = { app: 'web' }
/** The label of objects that an exercise adds. They are removed with it. */
export const exerciseLabel = 'playground/exercise'

/** The ports that the two Services lead to. */
const containerPorts = [
  { name: 'http', containerPort: 8080, protocol: 'TCP' },
  { name: 'echo', containerPort: 8080, protocol: 'UDP' },
] as const

/** The Deployment whose pods the playground and the tour talk to. */
export function webDeployment(replicas: number): NewObject {
  const template = {
    metadata: { labels: webLabels },
    spec: { containers: [{ name: 'web', image: 'built-in', ports: [...containerPorts] }] },
  }
  return {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'web', namespace: 'default' },
    spec: { replicas, selector: { matchLabels: webLabels }, template },
  }
}

export function serviceOverWeb(name: string, spec: JsonObject): NewObject {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: 'default' },
    spec: { selector: webLabels, ...spec },
  }
}
