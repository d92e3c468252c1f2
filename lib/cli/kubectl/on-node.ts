import { printable } from '../../state/printable.js'
import type { RemoteProxy } from './proxies.js'

/**
 * Says what only the node can tell, and with which command and right. The plug-in does not run
 * programs there.
 */
export function onNode({ pod, namespace }: RemoteProxy, command: string, what: string): string {
  const main = '/app/build/lib/cli/main.js'
  const ask = `kubectl exec -n ${printable(namespace)} ${printable(pod)} -- node ${main} ${command}`
  return `Only the node can tell ${what}: \`${ask}\`, with the right to exec.`
}
