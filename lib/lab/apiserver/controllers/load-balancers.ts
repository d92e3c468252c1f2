import { listAt, textAt } from '../json.js'
import type { KubeObject } from '../object.js'
import { controller, ownKey, type Controller, type ControllerDeps } from './controller.js'

const firstAddress = 10
const lastAddress = 250

/**
 * Gives Services of type LoadBalancer an address and takes it back, as a cloud does. The
 * addresses are `prefix` and a last number.
 */
export function loadBalancerController(deps: ControllerDeps, prefix: string): Controller {
  return controller(deps, ({ services }) => ({
    watched: [[services, ownKey]],
    reconcile(key) {
      const service = services.get(key)
      if (service === undefined) return
      const wants = textAt(service, 'spec', 'type') === 'LoadBalancer'
      if (wants === (addressOf(service) !== '')) return
      const ip = wants ? freeAddress(prefix, new Set(services.list().map(addressOf))) : ''
      services.updateStatus(service, { loadBalancer: wants ? { ingress: [{ ip }] } : {} })
    },
  }))
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
