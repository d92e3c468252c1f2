import { withoutBrackets } from '../state/ip.js'
import type { Log } from '../modes/mode.js'
import type { StateUpdate } from '../state/tracker.js'
import type { SyncListener } from '../sync/sync-round.js'

/**
 * Logs a warning when the API server is asked at its Service. Another proxy, or an earlier run, may
 * have left rules that lead there now. The first start without them gets no objects, and so never
 * writes the rules that it needs.
 */
export function ownServerWatch(server: string, log: Log): SyncListener {
  const { hostname, port, protocol } = new URL(server)
  const ip = withoutBrackets(hostname)
  const number = Number(port || (protocol === 'https:' ? 443 : 80))
  let hasLooked = false
  return {
    started({ states }: StateUpdate) {
      if (hasLooked) return
      // The first update has all Services.
      hasLooked = true
      for (const { services } of states) {
        for (const { clusterIp, port: own, portName } of services.values()) {
          if (clusterIp !== ip || own !== number) continue
          log.warn(
            { server, service: portName },
            'the API server is asked at a Service that this proxy serves, which does not answer ' +
              'after a restart of the node, or of this process in userspace mode: give ' +
              'KUBERNETES_SERVICE_HOST and _PORT, or the kubeconfig, the address of the server itself',
          )
        }
      }
    },
  }
}
