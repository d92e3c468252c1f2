import { listAt, numberAt, textAt } from '../apiserver/json.js'
import type { KubeObject } from '../apiserver/object.js'

/** The most common ports of images, for pods whose containers name no port. */
const usualPorts: readonly number[] = [80, 443, 3000, 5000, 8000, 8080, 8081, 8443, 9090]

/** The ports on which a pod answers: those that its containers name, or else the usual ones. */
export function portsOf(pod: KubeObject): {
  readonly ports: readonly number[]
  /** Whether its containers name them. */
  readonly areNamed: boolean
} {
  const named = listAt(pod, 'spec', 'containers')
    .flatMap((container) => listAt(container, 'ports'))
    .filter((port) => ['', 'TCP', 'UDP'].includes(textAt(port, 'protocol')))
    .flatMap((port) => numberAt(port, 'containerPort') ?? [])
    .filter((port) => Number.isInteger(port) && port > 0 && port < 65_536)
  const areNamed = named.length > 0
  return { ports: areNamed ? [...new Set(named)] : usualPorts, areNamed }
}
