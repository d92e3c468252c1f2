import { rename, rm, writeFile } from 'node:fs/promises'
import { stringify } from 'yaml'
import { ConfigError, messageOf } from '../../errors.js'

interface KubeconfigOptions {
  readonly url: string
  /** PEM; only for https. */
  readonly certificateAuthority?: string | undefined
}

/** A kubeconfig for this server: what `kubectl --kubeconfig` and every client library reads. */
function kubeconfigOf(options: KubeconfigOptions): string {
  const authority = options.certificateAuthority
  const name = 'kube-proxy-ts'
  // Over TLS kubectl asks for a password if the kubeconfig has no token.
  const user = authority === undefined ? {} : { token: 'anonymous' }
  return stringify({
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': name,
    clusters: [
      {
        name,
        cluster: {
          server: options.url,
          ...(authority === undefined
            ? // Without TLS there is nothing to verify, but the JavaScript client refuses without this setting.
              { 'insecure-skip-tls-verify': true }
            : { 'certificate-authority-data': Buffer.from(authority).toString('base64') }),
        },
      },
    ],
    users: [{ name, user }],
    contexts: [{ name, context: { cluster: name, user: name, namespace: 'default' } }],
  })
}

/** Writes under another name first, so that a reader never sees half of the file. */
export async function writeKubeconfig(path: string, options: KubeconfigOptions): Promise<void> {
  const draft = `${path}.${process.pid}.tmp`
  try {
    await writeFile(draft, kubeconfigOf(options), { mode: 0o600 })
    await rename(draft, path)
  } catch (cause) {
    await rm(draft, { force: true }).catch(() => undefined)
    // Node's message ends with the name of the draft.
    const [why = ''] = messageOf(cause).split(', ')
    throw new ConfigError(`the kubeconfig ${path} cannot be written: ${why}`, { cause })
  }
}
