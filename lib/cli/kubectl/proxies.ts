import type { Command } from 'commander'
import { ConfigError, messageOf, SourceError } from '../../errors.js'
import { asArray, asObject, asString } from '../../state/json.js'
import { wholeNumber } from '../shared-options.js'
import { printable, someOf } from '../../state/names.js'
import { isInterrupted } from '../process.js'
import { addClusterOptions, Kubectl, type ClusterFlags } from './kubectl.js'
import type { WayToDaemon } from '../seen-node.js'

/** The flags that say where the proxies of a cluster are. */
export interface ProxyFlags extends ClusterFlags {
  readonly node?: string
  readonly proxyNamespace: string
  readonly selector: string
  readonly port: string
}

/** The pod of a proxy, and the way to its metrics server. */
export interface RemoteProxy extends WayToDaemon {
  readonly node: string
  readonly pod: string
  readonly namespace: string
}

export function addProxyOptions(command: Command): Command {
  const own = command
    .option('--node <name>', 'the proxy of this node')
    .option('--proxy-namespace <name>', 'where the pods of the proxy are', 'kube-system')
    .option(
      '-l, --selector <labels>',
      'labels of those pods',
      'app.kubernetes.io/name=kube-proxy-ts',
    )
    .option('--port <number>', 'port of their metrics server', '10249')
  return addClusterOptions(own)
}

/** The proxy of one node, or all of them, by node. Throws if there is none. */
export async function findProxies(
  kubectl: Kubectl,
  flags: ProxyFlags,
  node = flags.node,
): Promise<readonly RemoteProxy[]> {
  const { proxyNamespace: namespace, selector } = flags
  const port = wholeNumber('--port', flags.port, 1, 65_535)
  const query = new URLSearchParams({ labelSelector: selector })
  const folder = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`
  const list = asObject(await kubectl.object(`${folder}?${query.toString()}`))
  const pods = (asArray(list?.items) ?? []).flatMap(podIn)
  const wanted = pods.filter((pod) => node === undefined || pod.node === node)
  if (wanted.length === 0) throw noProxy(flags, node, pods)
  return wanted
    .map(({ name, node: on }) => ({
      ...{ node: on, pod: name, namespace },
      name: `the proxy of node ${printable(on)}`,
      get: (path: string) =>
        read(kubectl, `${folder}/${encodeURIComponent(name)}:${port}/proxy${path}`, on),
    }))
    .sort((one, other) => (one.node < other.node ? -1 : 1))
}

interface Pod {
  readonly name: string
  readonly node: string
}

/** A pod without a node, or a pod that ends, is no proxy. */
function podIn(item: unknown): readonly Pod[] {
  const pod = asObject(item)
  const [metadata, spec] = [asObject(pod?.metadata), asObject(pod?.spec)]
  const [name, node] = [asString(metadata?.name), asString(spec?.nodeName)]
  const phase = asString(asObject(pod?.status)?.phase)
  if (name === undefined || node === undefined || phase === 'Failed' || phase === 'Succeeded')
    return []
  return metadata?.deletionTimestamp === undefined ? [{ name, node }] : []
}

function noProxy(
  { proxyNamespace, selector }: ProxyFlags,
  node: string | undefined,
  pods: readonly Pod[],
) {
  const where = `with ${selector} in namespace ${proxyNamespace}`
  return new ConfigError(
    pods.length === 0
      ? `there is no pod ${where}; --selector (such as k8s-app=kube-proxy) and --proxy-namespace say where the proxy is`
      : `there is no proxy on node ${JSON.stringify(node)}; pods ${where} are on ${nodesOf(pods)}`,
  )
}

const mostNamed = 10

function nodesOf(pods: readonly Pod[]): string {
  return someOf(pods.map(({ node }) => printable(node)).sort(), mostNamed)
}

async function read(kubectl: Kubectl, path: string, node: string): Promise<string> {
  try {
    return await kubectl.get(path)
  } catch (error) {
    if (!(error instanceof SourceError)) throw error
    throw new SourceError(
      `node ${printable(node)}: ${messageOf(error)}${adviceAbout(messageOf(error))}`,
      { cause: error },
    )
  }
}

function adviceAbout(message: string): string {
  if (!/connection refused|error trying to reach service/.test(message)) return ''
  return '; the API server reaches the proxy only if metricsBindAddress is an address of the node or 0.0.0.0:10249, not 127.0.0.1'
}

/** The answer of a proxy, or why there is none. */
export type Asked<Answer> =
  | { readonly proxy: RemoteProxy; readonly answer: Answer }
  | { readonly proxy: RemoteProxy; readonly error: string }

/** This many are asked at a time: each is a process here and a connection of the API server. */
const together = 8

/**
 * Asks each proxy. If one does not answer, the others still do. A right counts for all of them: if
 * the API server refuses the first ones, only one refusal is returned, and no other proxy is asked.
 */
export async function askAll<Answer>(
  proxies: readonly RemoteProxy[],
  ask: (proxy: RemoteProxy) => Promise<Answer>,
): Promise<readonly Asked<Answer>[]> {
  const asked: Asked<Answer>[] = []
  for (let begin = 0; begin < proxies.length; begin += together) {
    const some = proxies.slice(begin, begin + together)
    asked.push(
      ...(await Promise.all(
        some.map(async (proxy): Promise<Asked<Answer>> => {
          try {
            return { proxy, answer: await ask(proxy) }
          } catch (error) {
            if (isInterrupted(error)) throw error
            return { proxy, error: messageOf(error) }
          }
        }),
      )),
    )
    const [first] = asked
    if (first && asked.every(isForbidden)) return [first]
  }
  return asked
}

const isForbidden = (one: Asked<unknown>) =>
  'error' in one && one.error.includes('Error from server (Forbidden)')

/** Returns the answers and prints the errors of other proxies. Throws if no proxy answered. */
export function answersOf<Answer>(
  asked: readonly Asked<Answer>[],
): readonly { readonly proxy: RemoteProxy; readonly answer: Answer }[] {
  const [errors, answers] = [
    asked.flatMap((one) => ('error' in one ? [one.error] : [])),
    asked.flatMap((one) => ('answer' in one ? [one] : [])),
  ]
  if (answers.length === 0) throw new SourceError([...new Set(errors)].join('\n'))
  for (const error of errors) process.stderr.write(`${printable(error)}\n`)
  if (errors.length > 0) process.exitCode = 1
  return answers
}

/**
 * Says what only the node can tell, and with which command and right. The plug-in does not run
 * programs there.
 */
export function onNode({ pod, namespace }: RemoteProxy, command: string, what: string): string {
  const ask = `kubectl exec -n ${printable(namespace)} ${printable(pod)} -- kube-proxy ${command}`
  return `Only the node can tell ${what}: \`${ask}\`, with the right to exec.`
}
