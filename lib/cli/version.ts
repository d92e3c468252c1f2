import { readFileSync } from 'node:fs'

/** The release of kube-proxy whose behaviour this program equals. */
export const kubernetesVersion = { major: '1', minor: '36' } as const

/** Of this package, from the package.json beside the build. */
export function packageVersion(): string {
  const text = readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')
  const { version } = JSON.parse(text) as { readonly version: string }
  return version
}

/** `kube-proxy-ts v0.1.0 (behaves as Kubernetes v1.36)` */
export function versionText(): string {
  const { major, minor } = kubernetesVersion
  return `kube-proxy-ts v${packageVersion()} (behaves as Kubernetes v${major}.${minor})`
}
