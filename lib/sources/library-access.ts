import type { RequestOptions } from 'node:https'
import { KubeConfig } from '@kubernetes/client-node'
import { ConfigError, messageOf, SourceError } from '../errors.js'
import type { ClusterAccess, Credentials } from './api-client.js'
import type { Headers } from './impersonation.js'

/** A proxy that has not connected to the server after this time loses its connection. */
const longestConnectMs = 30_000

/**
 * Access by the official client library, which runs exec plugins and refreshes OIDC tokens. It
 * knows no groups of another user, so all headers to act as another user are given to it.
 */
export function libraryAccess(
  kubeconfig: string,
  server: string,
  impersonation: Headers,
): ClusterAccess {
  let config = load(kubeconfig, server)
  let asking: Promise<Credentials> | undefined
  const ask = async (): Promise<Credentials> => {
    const options: RequestOptions = { timeout: longestConnectMs }
    try {
      await config.applyToHTTPSOptions(options)
      const hasPlugin = Boolean(config.getCurrentUser()?.exec)
      if (hasPlugin && options.cert === undefined && !('Authorization' in textHeaders(options))) {
        throw new Error('the exec plugin gave neither a token nor a certificate')
      }
    } catch (cause) {
      // The library keeps what a plugin printed, also when it cannot use it.
      forget()
      const why = messageOf(cause).trim() || 'the exec plugin failed and gave no reason'
      throw new SourceError(`get credentials for ${server}: ${why}`, { cause })
    }
    return { ...options, headers: { ...textHeaders(options), ...impersonation } }
  }
  const forget = () => {
    // A new instance has no cached tokens and reads the kubeconfig again.
    config = load(kubeconfig, server)
  }
  return {
    server,
    // All requests wait for the same plugin, so one that hangs is not started again and again.
    credentials: () => (asking ??= ask().finally(() => (asking = undefined))),
    forget,
  }
}

function load(kubeconfig: string, server: string): KubeConfig {
  const config = new KubeConfig()
  try {
    config.loadFromFile(kubeconfig)
  } catch (cause) {
    throw new ConfigError(`read kubeconfig ${kubeconfig}: ${messageOf(cause)}`, { cause })
  }
  const current = config.getCurrentCluster()
  config.clusters = config.clusters.map((cluster) =>
    cluster === current
      ? // The library accepts plain HTTP only with skipTLSVerify.
        { ...cluster, server, skipTLSVerify: cluster.skipTLSVerify || server.startsWith('http:') }
      : cluster,
  )
  return config
}

function textHeaders(options: RequestOptions): Record<string, string> {
  return Object.fromEntries(
    Object.entries(options.headers ?? {}).map(([name, value]) => [name, String(value)]),
  )
}
