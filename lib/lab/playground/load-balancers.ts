import { listAt, textAt, withAt } from '../apiserver/json.js'
import type { KubeObject } from '../apiserver/object.js'
import type { Registry } from '../apiserver/registry.js'

const firstAddress = 10
const lastAddress = 250

/**
 * Gives Services of type LoadBalancer an address and takes it back, as a cloud does. The
 * outside of the scene sends all that begin with `prefix` to the node. Returns how to stop.
 */
export function followLoadBalancers(registry: Registry, prefix: string): () => void {
  const kind = registry.resources.byKind('v1', 'Service')
  if (!kind) return () => undefined
  const settle = () => {
    const services = registry.store.list('services')
    const taken = new Set(services.map(addressOf))
    for (const service of services) {
      const wants = textAt(service, 'spec', 'type') === 'LoadBalancer'
      const has = addressOf(service) !== ''
      if (wants === has) continue
      const ip = wants ? freeAddress(prefix, taken) : ''
      taken.add(ip)
      const status = wants ? { loadBalancer: { ingress: [{ ip }] } } : { loadBalancer: {} }
      registry.update(kind, withAt(service, ['status'], status), { subresource: 'status' })
    }
  }
  // A listener must not write before it has returned.
  return registry.store.subscribe('services', () => queueMicrotask(settle))
}

function addressOf(service: KubeObject): string {
  const [ingress] = listAt(service, 'status', 'loadBalancer', 'ingress')
  return textAt(ingress, 'ip')
}

function freeAddress(prefix: string, taken: ReadonlySet<string>): string {
  for (let last = firstAddress; last < lastAddress; last++) {
    const ip = `${prefix}${last}`
    if (!taken.has(ip)) return ip
  }
  return ''
}
