import { connectionsIn } from '../../inspect/top/daemon-numbers.js'
import { frontends } from '../../inspect/top/rows.js'
import { hostPort } from '../../state/ip.js'
import type { AnswerCount } from '../view.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { ModeName } from '../../modes/registry.js'

/**
 * Connections by endpoint: counted by the proxy itself in userspace mode; else those that the
 * kernel tracks now.
 */
export function endpointCounts(
  mode: ModeName,
  metrics: () => Promise<string>,
): (state: DesiredState, key: string) => Promise<readonly AnswerCount[]> {
  return async (state, key) => {
    const service = state.services.get(key)
    if (!service) return []
    const counts = new Map<string, number>()
    if (mode === 'userspace') {
      const suffix = ` for ${service.portName}`
      for (const [name, count] of connectionsIn(await metrics())) {
        if (name.endsWith(suffix)) counts.set(name.slice(0, -suffix.length), count)
      }
    } else {
      const { listTrackedFlows } = await import('../../kernel/tracked-flows.js')
      const own = new Set(frontends(service, state))
      for (const { protocol, destination, answeredBy } of await listTrackedFlows(state.family)) {
        if (!own.has(`${protocol} ${destination.ip} ${destination.port}`)) continue
        const endpoint = hostPort(answeredBy.ip, answeredBy.port)
        counts.set(endpoint, (counts.get(endpoint) ?? 0) + 1)
      }
    }
    return [...counts].sort().map(([name, count]) => ({ name, count }))
  }
}
