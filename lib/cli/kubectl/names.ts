import { Option, type Command } from 'commander'
import { ConfigError } from '../../errors.js'
import { asArray, asObject, asString } from '../../state/json.js'
import { parseIp } from '../../state/ip.js'
import { addProxyOptions, type ProxyFlags } from './proxies.js'
import type { Kubectl } from './kubectl.js'
import type { OutputFlags } from '../shared-options.js'

/** Names as users of kubectl write them: `svc/web`, `pod/x`, `-n`, `-A`, `-o`. */

export interface NamedFlags extends ProxyFlags {
  readonly namespace?: string
  readonly allNamespaces?: boolean
  readonly output?: 'json' | 'yaml' | 'wide' | 'name'
}

const formats = ['json', 'yaml', 'wide', 'name'] as const

export function addNamedOptions(command: Command, named: 'all-namespaces' | 'one'): Command {
  command.option('-n, --namespace <name>', 'the namespace; default: that of the context')
  if (named === 'all-namespaces') command.option('-A, --all-namespaces', 'of all namespaces')
  command.addOption(new Option('-o, --output <format>', 'the format').choices(formats))
  return addProxyOptions(command)
}

/** The format for commands that print as those on a node do. They do not know `name`. */
export const outputOf = ({ output }: NamedFlags): OutputFlags =>
  output === undefined || output === 'name' ? {} : { output }

/** The namespace asked for; undefined: all of them. */
export async function namespaceOf(
  kubectl: Kubectl,
  { namespace, allNamespaces }: NamedFlags,
): Promise<string | undefined> {
  if (allNamespaces === true) return undefined
  return namespace ?? kubectl.namespace()
}

const servicePrefix = /^(?:svc|services?)\//

/** `svc/web`, `web:http`, `default/web` or `10.96.0.10:80`, as `explain` reads it. */
export function targetOf(text: string, namespace: string | undefined): string {
  const target = text.replace(servicePrefix, '')
  const host = /^(?:\[([^\]]+)\]|([^:/]+)):\d{1,5}$/.exec(target)
  const isAddress = parseIp(host?.[1] ?? host?.[2] ?? '') !== undefined
  if (target.includes('/') && servicePrefix.test(text)) {
    throw new ConfigError(`${JSON.stringify(text)}: give the namespace with -n`)
  }
  if (isAddress || target.includes('/') || namespace === undefined) return target
  return `${namespace}/${target}`
}

interface Client {
  /** `pod`, `node`, `outside`, an address or a CIDR. */
  readonly from: string
  /** The same, or all addresses of the pod: a pod may have one of each family. */
  readonly addresses: readonly string[]
  /** The node of the client, if it is a pod. */
  readonly node: string | undefined
}

const podPrefix = /^(?:po|pods?)\//

/** For `pod/x` the address and the node of the pod; every other text stays as it is. */
export async function clientOf(
  kubectl: Kubectl,
  from: string,
  namespace: string | undefined,
): Promise<Client> {
  if (!podPrefix.test(from)) return { from, addresses: [from], node: undefined }
  const name = from.replace(podPrefix, '')
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace ?? 'default')}/pods/${encodeURIComponent(name)}`
  const pod = asObject(await kubectl.object(path))
  const status = asObject(pod?.status)
  const listed = (asArray(status?.podIPs) ?? []).map((item) => asString(asObject(item)?.ip))
  const all = [asString(status?.podIP), ...listed].filter((text) => text !== undefined)
  const addresses = [...new Set(all)]
  const [ip] = addresses
  if (ip === undefined) throw new ConfigError(`--from: ${from} has no address yet`)
  return { from: ip, addresses, node: asString(asObject(pod?.spec)?.nodeName) }
}

/** `service/web` for `default/web:http`, as kubectl prints names. */
export const serviceName = (service: string) =>
  `service/${service.slice(service.indexOf('/') + 1).split(':', 1)[0] ?? ''}`
