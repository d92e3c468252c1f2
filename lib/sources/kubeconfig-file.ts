import { readFileSync } from 'node:fs'
import { dirname, resolve, sep } from 'node:path'
import { parse } from 'yaml'
import { ConfigError, messageOf } from '../errors.js'
import { isSocks } from './chosen-proxy.js'
import { tooDeep } from '../yaml-levels.js'
import type { ExecSpec } from './exec-plugin.js'
import { impersonation, type Headers } from './impersonation.js'
import { asArray, asObject, asString, show, strings, type Json } from '../state/json.js'

/** A secret or certificate: as text, or in a file that is read again because it may change. */
export type TextOrFile = { readonly text: string } | { readonly file: string }

/** How to reach the current cluster of a kubeconfig without the client library. */
export interface AccessSpec {
  readonly server: string
  readonly isInsecure: boolean
  readonly tlsServerName?: string | undefined
  readonly authority?: TextOrFile | undefined
  readonly certificate?: TextOrFile | undefined
  readonly key?: TextOrFile | undefined
  readonly token?: TextOrFile | undefined
  readonly basicAuth?: string | undefined
  /** A program that gives more credentials. */
  readonly exec?: ExecSpec | undefined
  /** To act as another user. */
  readonly impersonation: Headers
  /** The URL of a proxy on the way to the server. */
  readonly proxy?: string | undefined
}

/** The entry of a cluster that is handed to plugins as it is. */
const extensionForPlugins = 'client.authentication.k8s.io/exec'

interface Kubeconfig {
  readonly spec: AccessSpec
  /** The user has an `auth-provider`, or the cluster is behind a SOCKS proxy. */
  readonly needsLibrary: boolean
}

/** Reads the current context of a kubeconfig. Throws ConfigError that names file and entry. */
export function readKubeconfig(path: string): Kubeconfig {
  const root = asObject(parseFile(path))
  const context = entry(path, root, 'context', root?.['current-context'])
  const cluster = entry(path, root, 'cluster', context['cluster'])
  const userName = asString(context['user']) ?? ''
  const user = userName === '' ? {} : entry(path, root, 'user', userName)
  const server = asString(cluster['server'])
  if (server === undefined || !/^https?:\/\//.test(server)) {
    throw new ConfigError(`read ${path}: server ${show(server)} is not an http or https URL`)
  }
  const directory = dirname(path)
  const username = asString(user['username'])
  const proxy = asString(cluster['proxy-url'])
  const where = `read kubeconfig ${path}: user ${show(userName)}`
  return {
    spec: {
      server,
      isInsecure: cluster['insecure-skip-tls-verify'] === true,
      tlsServerName: asString(cluster['tls-server-name']),
      authority: textOrFile(cluster, 'certificate-authority', directory),
      certificate: textOrFile(user, 'client-certificate', directory),
      key: textOrFile(user, 'client-key', directory),
      token: tokenOf(user, directory),
      basicAuth:
        username === undefined ? undefined : `${username}:${asString(user['password']) ?? ''}`,
      exec: execOf(asObject(user['exec']), { directory, where, cluster }),
      impersonation: impersonation(user, where),
      proxy,
    },
    needsLibrary: user['auth-provider'] !== undefined || isSocks(proxy),
  }
}

function parseFile(path: string): unknown {
  try {
    const text = readFileSync(path, 'utf8')
    const deep = tooDeep(text)
    if (deep !== undefined) throw new ConfigError(deep)
    return parse(text) as unknown
  } catch (cause) {
    throw new ConfigError(`read kubeconfig ${path}: ${messageOf(cause)}`, { cause })
  }
}

/** The entry of that name in a list of the file, such as `clusters` for a `cluster`. */
function entry(path: string, root: Json | undefined, part: string, wanted: unknown): Json {
  const name = asString(wanted) ?? ''
  const items = (asArray(root?.[`${part}s`]) ?? []).map(asObject)
  const found = asObject(items.find((item) => item?.['name'] === name)?.[part])
  if (found !== undefined) return found
  if (part === 'context' && name === '') {
    const how = 'kubectl config use-context NAME writes it; is this the whole file?'
    throw new ConfigError(`read kubeconfig ${path}: current-context is not set; ${how}`)
  }
  throw new ConfigError(
    `read kubeconfig ${path}: ${part}s has no entry ${show(name)}; ` +
      'check current-context and the names in that context',
  )
}

/** `NAME-data` in base64, or the file that `NAME` points to. */
function textOrFile(source: Json, name: string, directory: string): TextOrFile | undefined {
  const data = asString(source[`${name}-data`])
  if (data !== undefined && data !== '') {
    return { text: Buffer.from(data, 'base64').toString('utf8') }
  }
  const file = asString(source[name])
  return file === undefined || file === '' ? undefined : { file: resolve(directory, file) }
}

/** The file has precedence over the text, as in other clients, because the file may be newer. */
function tokenOf(user: Json, directory: string): TextOrFile | undefined {
  const file = asString(user['tokenFile'])
  if (file !== undefined && file !== '') return { file: resolve(directory, file) }
  const text = asString(user['token'])
  return text === undefined || text === '' ? undefined : { text }
}

/** A command that is a path is relative to the kubeconfig, as in other clients. */
function execOf(exec: Json | undefined, by: ClusterBeside): ExecSpec | undefined {
  if (exec === undefined) return undefined
  const command = asString(exec['command']) ?? ''
  if (command === '') throw new ConfigError(`${by.where}: exec has no command`)
  const variables = (asArray(exec['env']) ?? []).map(asObject)
  return {
    apiVersion: asString(exec['apiVersion']) ?? 'client.authentication.k8s.io/v1',
    command: command.includes(sep) ? resolve(by.directory, command) : command,
    args: strings(exec['args']),
    env: Object.fromEntries(
      variables.map((item) => [asString(item?.['name']) ?? '', asString(item?.['value']) ?? '']),
    ),
    cluster: exec['provideClusterInfo'] === true ? clusterFor(by) : undefined,
  }
}

interface ClusterBeside {
  readonly cluster: Json
  readonly directory: string
  /** For errors. */
  readonly where: string
}

/** The cluster as the protocol of plugins has it: its authority as data, and what it says to them. */
function clusterFor({ cluster, directory, where }: ClusterBeside): Json {
  const names = ['server', 'tls-server-name', 'insecure-skip-tls-verify', 'proxy-url']
  const authority = textOrFile(cluster, 'certificate-authority', directory)
  const extensions = (asArray(cluster['extensions']) ?? []).map(asObject)
  const forPlugins = extensions.find((item) => item?.['name'] === extensionForPlugins)
  return {
    ...Object.fromEntries(names.map((name) => [name, cluster[name]])),
    'certificate-authority-data':
      authority && Buffer.from(textNow(authority, where)).toString('base64'),
    config: forPlugins?.['extension'],
  }
}

function textNow(source: TextOrFile, where: string): string {
  if ('text' in source) return source.text
  try {
    return readFileSync(source.file, 'utf8')
  } catch (cause) {
    throw new ConfigError(`${where}: ${messageOf(cause)}`, { cause })
  }
}
