import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createSecureContext, type SecureContextOptions } from 'node:tls'
import { isDeepStrictEqual } from 'node:util'
import { ConfigError, messageOf, SourceError } from '../errors.js'
import type { ClusterAccess, Credentials } from './api-client.js'
import { chosenProxy } from './chosen-proxy.js'
import { checkToken, ExecPlugin } from './exec-plugin.js'
import type { Headers } from './impersonation.js'
import { readKubeconfig, type AccessSpec, type TextOrFile } from './kubeconfig-file.js'

interface AccessOptions {
  /** A path; empty: none. */
  readonly kubeconfig: string
  /** A URL that overrides the server of the kubeconfig. Without one there are no credentials. */
  readonly master: string
}

interface AccessDeps {
  readonly env: Readonly<Record<string, string | undefined>>
  readonly now: () => number
}

/** Tokens and certificates are read again after this time, because they are rotated. */
const rereadMs = 60_000

export const serviceAccount = '/var/run/secrets/kubernetes.io/serviceaccount'

/** Finds the API server as every client does: kubeconfig, --master, or the account of the pod. */
export async function openCluster(
  options: AccessOptions,
  deps: AccessDeps = { env: process.env, now: () => performance.now() },
): Promise<ClusterAccess> {
  const { kubeconfig, master } = options
  if (kubeconfig === '') {
    return new PlainAccess(master === '' ? inClusterSpec(deps.env) : bareSpec(master), deps)
  }
  // The configuration of kubeadm names a kubeconfig that only kube-proxy's own pod has.
  if (deps.env['KUBERNETES_SERVICE_HOST'] !== undefined && !existsSync(kubeconfig)) {
    throw new ConfigError(
      `read kubeconfig ${kubeconfig}: no such file; in a pod leave clientConnection.kubeconfig ` +
        '(--kubeconfig) empty, which means its ServiceAccount',
    )
  }
  const read = () => {
    const { spec, needsLibrary } = readKubeconfig(kubeconfig)
    const server = master === '' ? spec.server : serverUrl(master)
    return { spec: { ...spec, server }, needsLibrary }
  }
  const { spec, needsLibrary } = read()
  const plain = new PlainAccess(spec, deps, () => read().spec)
  if (!needsLibrary) return plain
  // The library costs 77 MB and 0.4 s. It is loaded only for OIDC and SOCKS.
  const { libraryAccess } = await import('./library-access.js')
  return libraryAccess(kubeconfig, plain)
}

function bareSpec(master: string): AccessSpec {
  return { server: serverUrl(master), isInsecure: false, impersonation: {} }
}

function inClusterSpec(env: AccessDeps['env']): AccessSpec {
  const host = env['KUBERNETES_SERVICE_HOST'] ?? ''
  const port = env['KUBERNETES_SERVICE_PORT'] ?? ''
  if (host === '' || port === '') {
    throw new ConfigError(
      'find the API server: neither --kubeconfig nor --master is given, and this is not a pod, ' +
        'because KUBERNETES_SERVICE_HOST is not set; give one of the flags',
    )
  }
  return {
    ...bareSpec(`https://${host.includes(':') ? `[${host}]` : host}:${port}`),
    authority: { file: `${serviceAccount}/ca.crt` },
    token: { file: `${serviceAccount}/token` },
  }
}

/** `--master` without a scheme means plain HTTP, as in kube-proxy. */
function serverUrl(master: string): string {
  const text = /^https?:\/\//.test(master) ? master : `http://${master}`
  if (!URL.canParse(text)) {
    throw new ConfigError(`--master ${JSON.stringify(master)} is not a URL of an API server`)
  }
  return text
}

/** Credentials from texts, files and a program. */
class PlainAccess implements ClusterAccess {
  readonly server: string
  readonly authority: string | undefined
  readonly #now: () => number
  readonly #newest: () => AccessSpec
  readonly #env: AccessDeps['env']
  #spec: AccessSpec
  #plugin: ExecPlugin | undefined
  #read: { readonly at: number; readonly credentials: Promise<Credentials> } | undefined

  constructor(spec: AccessSpec, { env, now }: AccessDeps, newest: () => AccessSpec = () => spec) {
    this.server = spec.server
    this.#env = env
    // A value that makes no sense ends the start, not each request.
    chosenProxy(spec, env)
    this.authority = spec.authority && nameOf(spec.authority)
    this.#spec = spec
    this.#now = now
    this.#newest = newest
    this.#plugin = spec.exec && new ExecPlugin(spec.exec)
  }

  async credentials(): Promise<Credentials> {
    const read = await this.#files()
    const given = await this.#plugin?.credentials()
    const credentials = { ...read, ...given, headers: { ...read.headers, ...given?.headers } }
    return { ...credentials, ...(await this.#way(credentials)) }
  }

  /** The tunnel is loaded late, because few nodes reach their API server through a proxy. */
  async #way({ ca, rejectUnauthorized }: Credentials): Promise<Pick<Credentials, 'agent'>> {
    const proxy = chosenProxy(this.#spec, this.#env)
    if (!proxy) return {}
    const { tunnelAgent } = await import('./http-tunnel.js')
    const isSecure = this.server.startsWith('https:')
    return { agent: tunnelAgent(proxy, { ca, rejectUnauthorized, isSecure }) }
  }

  #files(): Promise<Credentials> {
    if (this.#read === undefined || this.#now() - this.#read.at >= rereadMs) {
      this.#read = { at: this.#now(), credentials: readCredentials(this.#spec) }
      // A file that cannot be read now may exist soon, so the failure is not kept.
      this.#read.credentials.catch(() => (this.#read = undefined))
    }
    return this.#read.credentials
  }

  /**
   * The kubeconfig is read again, because it is rotated, too. Until it can be read, and when it names
   * another server, to which this client does not talk, what it said last counts.
   */
  forget(): void {
    this.#read = undefined
    this.#plugin?.forget()
    const last = this.#spec
    const written = this.#writtenNow()
    if (written?.server === this.server) this.#spec = written
    if (isDeepStrictEqual(this.#spec.exec, last.exec)) return
    this.#plugin = this.#spec.exec && new ExecPlugin(this.#spec.exec)
  }

  movedTo(): string | undefined {
    const server = this.#writtenNow()?.server
    return server === this.server ? undefined : server
  }

  /** What the kubeconfig says now; undefined while it cannot be read. */
  #writtenNow(): AccessSpec | undefined {
    try {
      return this.#newest()
    } catch {
      return undefined
    }
  }
}

async function readCredentials(spec: AccessSpec): Promise<Credentials> {
  const [ca, cert, key, token] = await Promise.all(
    [spec.authority, spec.certificate, spec.key, spec.token].map(readTextOrFile),
  )
  if (cert !== undefined) checkPair(spec, { ca, cert, key })
  if (token !== undefined) {
    checkToken(token.trim(), `read credentials: the token ${nameOf(spec.token)}`)
  }
  return {
    headers: { ...authorization(token, spec.basicAuth), ...spec.impersonation },
    ...{ ca, cert, key },
    servername: spec.tlsServerName,
    // Node takes a value that is undefined for its default, and not what its environment says.
    ...(spec.isInsecure ? { rejectUnauthorized: false } : {}),
  }
}

function authorization(token: string | undefined, basicAuth: string | undefined): Headers {
  if (token !== undefined) return { Authorization: `Bearer ${token.trim()}` }
  if (basicAuth === undefined) return {}
  return { Authorization: `Basic ${Buffer.from(basicAuth).toString('base64')}` }
}

/** The errors of TLS name no file. A certificate may be there before its key, or the key before. */
function checkPair(spec: AccessSpec, options: SecureContextOptions): void {
  try {
    createSecureContext(options)
  } catch (cause) {
    const [cert, key] = [spec.certificate, spec.key].map(nameOf)
    const what = `client certificate ${cert} with client key ${key}`
    throw new SourceError(`read credentials: ${what}: ${messageOf(cause)}`, { cause })
  }
}

function nameOf(source: TextOrFile | undefined): string {
  return source === undefined ? '(none)' : 'file' in source ? source.file : 'in the kubeconfig'
}

/**
 * An empty file is half written. Taken for none, it would make the proxy anonymous, or let it trust
 * what every browser trusts.
 */
async function readTextOrFile(source: TextOrFile | undefined): Promise<string | undefined> {
  if (source === undefined) return undefined
  if ('text' in source) return source.text
  let text: string
  try {
    text = await readFile(source.file, 'utf8')
  } catch (cause) {
    throw new SourceError(`read credentials: ${messageOf(cause)}`, { cause })
  }
  if (text.trim() === '') throw new SourceError(`read credentials: ${source.file} is empty`)
  return text
}
