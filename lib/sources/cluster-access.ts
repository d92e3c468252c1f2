import { readFile } from 'node:fs/promises'
import { ConfigError, messageOf, SourceError } from '../errors.js'
import type { ClusterAccess, Credentials } from './api-client.js'
import { readKubeconfig, type AccessSpec, type Material } from './kubeconfig-file.js'

export interface AccessOptions {
  /** Empty: none. */
  readonly kubeconfig: string
  /** Overrides the server of the kubeconfig; alone it is a server without credentials. */
  readonly master: string
}

export interface AccessDeps {
  readonly env: Readonly<Record<string, string | undefined>>
  readonly now: () => number
}

/** Rotated tokens and certificates are picked up within this time, as other clients do. */
const rereadMs = 60_000

const serviceAccount = '/var/run/secrets/kubernetes.io/serviceaccount'

/** Finds the API server as every client does: kubeconfig, --master, or the pod's own account. */
export async function openCluster(
  options: AccessOptions,
  deps: AccessDeps = { env: process.env, now: Date.now },
): Promise<ClusterAccess> {
  const { kubeconfig, master } = options
  if (kubeconfig === '') {
    return new FileAccess(master === '' ? inClusterSpec(deps.env) : bareSpec(master), deps.now)
  }
  const { spec, needsLibrary } = readKubeconfig(kubeconfig)
  const server = master === '' ? spec.server : serverUrl(master)
  if (!needsLibrary) return new FileAccess({ ...spec, server }, deps.now)
  // 77 MB and 0.4 s, which only those pay who need what it is good at: exec, OIDC, proxies.
  const { libraryAccess } = await import('./library-access.js')
  return libraryAccess(kubeconfig, server)
}

function bareSpec(master: string): AccessSpec {
  return {
    server: serverUrl(master),
    isInsecure: false,
    tlsServerName: undefined,
    authority: undefined,
    certificate: undefined,
    key: undefined,
    token: undefined,
    basicAuth: undefined,
    impersonate: undefined,
  }
}

function inClusterSpec(env: AccessDeps['env']): AccessSpec {
  const host = env['KUBERNETES_SERVICE_HOST'] ?? ''
  const port = env['KUBERNETES_SERVICE_PORT'] ?? ''
  if (host === '' || port === '') {
    throw new ConfigError(
      'find the API server: neither --kubeconfig nor --master is given, and ' +
        'KUBERNETES_SERVICE_HOST is not set, so this is no pod; give one of the flags',
    )
  }
  return {
    ...bareSpec(`https://${host.includes(':') ? `[${host}]` : host}:${port}`),
    authority: { file: `${serviceAccount}/ca.crt` },
    token: { file: `${serviceAccount}/token` },
  }
}

/** `--master` may come without a scheme: then it is plain HTTP, as kube-proxy reads it. */
function serverUrl(master: string): string {
  const text = /^https?:\/\//.test(master) ? master : `http://${master}`
  if (!URL.canParse(text)) {
    throw new ConfigError(`--master ${JSON.stringify(master)} is not a URL of an API server`)
  }
  return text
}

/** Credentials that are texts and files. */
class FileAccess implements ClusterAccess {
  readonly server: string
  readonly #spec: AccessSpec
  readonly #now: () => number
  #read: { readonly at: number; readonly credentials: Promise<Credentials> } | undefined

  constructor(spec: AccessSpec, now: () => number) {
    this.server = spec.server
    this.#spec = spec
    this.#now = now
  }

  credentials(): Promise<Credentials> {
    if (this.#read === undefined || this.#now() - this.#read.at >= rereadMs) {
      this.#read = { at: this.#now(), credentials: readCredentials(this.#spec) }
      // A file that cannot be read now may be there in a moment: do not keep the failure.
      this.#read.credentials.catch(() => this.forget())
    }
    return this.#read.credentials
  }

  forget(): void {
    this.#read = undefined
  }
}

async function readCredentials(spec: AccessSpec): Promise<Credentials> {
  const [ca, cert, key, token] = await Promise.all(
    [spec.authority, spec.certificate, spec.key, spec.token].map(readMaterial),
  )
  const authorization =
    token !== undefined
      ? `Bearer ${token.trim()}`
      : spec.basicAuth === undefined
        ? undefined
        : `Basic ${Buffer.from(spec.basicAuth).toString('base64')}`
  return {
    headers: {
      ...(authorization === undefined ? {} : { Authorization: authorization }),
      ...(spec.impersonate === undefined ? {} : { 'Impersonate-User': spec.impersonate }),
    },
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key }),
    ...(spec.tlsServerName === undefined ? {} : { servername: spec.tlsServerName }),
    ...(spec.isInsecure ? { rejectUnauthorized: false } : {}),
  }
}

async function readMaterial(material: Material | undefined): Promise<string | undefined> {
  if (material === undefined) return undefined
  if ('text' in material) return material.text
  try {
    return await readFile(material.file, 'utf8')
  } catch (cause) {
    throw new SourceError(`read credentials: ${messageOf(cause)}`, { cause })
  }
}
