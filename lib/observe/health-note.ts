import { checkText } from '../state/endpoint-check.js'
import { counted, someOf } from '../state/names.js'
import type { EndpointTurn, PortHealth } from '../sources/health/health-checks.js'

/** How many endpoints, or ports, one text names. */
export const mostNamed = 5

/**
 * The note of an Event: which endpoints of a Service fail, or pass their check again, and what that
 * means. `ports` are all of the Service that are checked, at least one; so are `turns`.
 */
export function healthNote(ports: readonly PortHealth[], turns: readonly EndpointTurn[]): string {
  const named = turns.map(({ endpoint, reason }) =>
    reason === undefined ? endpoint : `${endpoint} (${reason})`,
  )
  const isOne = turns.length === 1
  const verbs = turns[0]?.reason === undefined ? ['passes again', 'pass again'] : ['fails', 'fail']
  const check = ports.slice(0, 1).map((port) => checkText(port.check))
  const what = `${someOf(named, mostNamed)} ${isOne ? verbs[0] : verbs[1]}`
  return `health check ${check.join()} from this node: ${what}; ${standing(ports)}`
}

/** How many endpoints work, and what becomes of ports without any. */
function standing(ports: readonly PortHealth[]): string {
  const checked = ports.reduce((sum, port) => sum + port.checked, 0)
  const works = checked - ports.reduce((sum, { failing }) => sum + failing.size, 0)
  const dark = ports.filter((port) => port.checked > 0 && port.failing.size >= port.checked)
  const isKept = dark[0]?.check.keepsLast
  const fate = isKept
    ? 'so all still get connections (health-check-last: keep)'
    : 'and none gets connections (health-check-last: remove)'
  if (works <= 0) return `no endpoint works, ${fate}`
  const count = `${works} of ${counted(checked, 'endpoint')} ${works === 1 ? 'works' : 'work'}`
  if (dark.length === 0) return count
  const names = dark.map(
    ({ port, family }) => `${port.port === '' ? port.protocol : port.port} (${family})`,
  )
  return `${count}; for port ${someOf(names, mostNamed)} no endpoint works, ${fate}`
}
