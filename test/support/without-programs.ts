import { spawnSync } from 'node:child_process'

/** Empties the folders that are always searched, and sets a search path that leads nowhere. */
const script =
  'for folder in /usr/sbin /sbin; do mount -t tmpfs none "$folder" || exit 1; done; exec env PATH=/nowhere "$@"'

/** A command line as on a machine without iptables; nothing on this machine changes. */
export function withoutPrograms(argv: readonly string[]): readonly [string, readonly string[]] {
  const asRoot = process.getuid?.() === 0 ? [] : ['--user', '--map-root-user']
  return ['unshare', [...asRoot, '--mount', 'sh', '-c', script, 'without-programs', ...argv]]
}

/** The reason why that is not possible here, or false. */
export function withoutProgramsSkip(): string | false {
  const [file, args] = withoutPrograms([process.execPath, '--version'])
  return spawnSync(file, args).status === 0 ? false : 'no mount namespace can be made here'
}
