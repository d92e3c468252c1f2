import type { RequestOptions } from 'node:https'
import { checkServerIdentity } from 'node:tls'
import { KubeConfig } from '@kubernetes/client-node'
import { ConfigError, messageOf, SourceError } from '../errors.js'
import { withoutBrackets } from '../state/ip.js'
import type { ClusterAccess, Credentials } from './api-client.js'
import { isSocks } from './chosen-proxy.js'

/**
 * Adds what the official client library knows to credentials that need no library: ways through
 * SOCKS proxies, and tokens of an `auth-provider`.
 */
export function libraryAccess(kubeconfig: string, plain: ClusterAccess): ClusterAccess {
  const { server, authority } = plain
  let config = load(kubeconfig, server)
  let asking: Promise<Credentials> | undefined
  const ask = async (): Promise<Credentials> => {
    const credentials = await plain.credentials()
    const name = credentials.servername ?? withoutBrackets(new URL(server).hostname)
    const options: RequestOptions = {
      ...credentials,
      headers: {},
      // By itself the way through SOCKS takes a server without a name for `localhost`.
      checkServerIdentity: (_host, certificate) => checkServerIdentity(name, certificate),
    }
    try {
      await config.applyToHTTPSOptions(options)
    } catch (cause) {
      forget()
      throw new SourceError(`get credentials for ${server}: ${messageOf(cause)}`, { cause })
    }
    const { agent } = credentials
    const headers = { ...credentials.headers, ...textHeaders(options) }
    return { ...options, ...(agent ? { agent } : {}), headers }
  }
  const forget = () => {
    plain.forget()
    try {
      // A new instance has no cached tokens and reads the kubeconfig again.
      config = load(kubeconfig, server)
    } catch {
      // It may be half written. What it said last counts.
    }
  }
  return {
    server,
    authority,
    credentials: () => (asking ??= ask().finally(() => (asking = undefined))),
    forget,
    movedTo: () => plain.movedTo(),
  }
}

/** The library sees of cluster and user only what it is needed for. */
function load(kubeconfig: string, server: string): KubeConfig {
  const config = new KubeConfig()
  try {
    config.loadFromFile(kubeconfig)
  } catch (cause) {
    throw new ConfigError(`read kubeconfig ${kubeconfig}: ${messageOf(cause)}`, { cause })
  }
  config.clusters = config.clusters.map(({ name, proxyUrl, skipTLSVerify }) => ({
    name,
    server,
    // The library accepts plain HTTP only with skipTLSVerify.
    skipTLSVerify: skipTLSVerify || server.startsWith('http:'),
    ...(proxyUrl !== undefined && isSocks(proxyUrl) ? { proxyUrl } : {}),
  }))
  config.users = config.users.map(({ name, authProvider }) => ({
    name,
    authProvider: authProvider as unknown,
  }))
  return config
}

function textHeaders(options: RequestOptions): Record<string, string> {
  return Object.fromEntries(
    Object.entries(options.headers ?? {}).map(([name, value]) => [name, String(value)]),
  )
}
