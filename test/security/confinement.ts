import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'

/** The rights that the manifests give the daemon, and a way to start a program with only these. */

const manifests = fileURLToPath(new URL('../../../examples/kubernetes', import.meta.url))
export const confine = fileURLToPath(new URL('../support/confine.js', import.meta.url))

interface DaemonSet {
  readonly spec: {
    readonly template: {
      readonly spec: {
        readonly containers: readonly {
          readonly securityContext: { readonly capabilities: { readonly add: readonly string[] } }
        }[]
      }
    }
  }
}

/** The capabilities of a mode: ebpf mode has a list in its overlay, the others that of the base. */
function capabilitiesOf(mode: string): readonly string[] {
  const file = mode === 'ebpf' ? 'overlays/ebpf/daemon-set.yaml' : 'base/daemon-set.yaml'
  const daemonSet = parse(readFileSync(join(manifests, file), 'utf8')) as DaemonSet
  return daemonSet.spec.template.spec.containers[0]?.securityContext.capabilities.add ?? []
}

export const profileFile = (mode: string) => join(manifests, 'overlays', mode, 'seccomp.json')

/** Starts a program as a container runtime does: root with these capabilities and system calls. */
export const confinementOf = (mode: string) => [
  ...['setpriv', '--no-new-privs', '--inh-caps=-all'],
  `--bounding-set=-all,${capabilitiesOf(mode)
    .map((name) => `+${name.toLowerCase()}`)
    .join()}`,
  ...[process.execPath, confine, profileFile(mode)],
]

/** A reason to skip a test of these rights, or false. */
export const confinementSkip: string | false = (() => {
  if (process.getuid?.() !== 0) return 'network namespaces need root'
  if (spawnSync('setpriv', ['--version']).error)
    return 'setpriv is not installed (Debian package util-linux)'
  const probe = spawnSync(process.execPath, [confine, profileFile('nftables'), 'true'])
  return probe.status === 0
    ? false
    : 'libseccomp.so.2 is not installed (Debian package libseccomp2)'
})()
