import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/**
 * A root file system like that of this machine, but without this checkout. Network and processes
 * are separate. Its changes are in memory and are gone at the end.
 */
const enter = `
set -e
mount -t tmpfs none "$1"
mkdir "$1/changed" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/changed,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t sysfs sysfs "$1/root/sys"
mount --rbind /dev "$1/root/dev"
# The checkout, and what would tell the package that systemd runs.
for folder in "$2" /tmp /run; do mount -t tmpfs none "$1/root$folder"; done
mkdir "$1/root/tmp/given" "$1/root/tmp/changed"
mount --bind "$3" "$1/root/tmp/given"
mount --bind "$1/changed" "$1/root/tmp/changed"
ip link set lo up
exec chroot "$1/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh -ec "$4"
`

/** Runs a shell script there. /tmp/given is a folder for it; /tmp/changed has the changed files. */
export function inFreshRoot(checkout: string, given: string, script: string) {
  const place = mkdtempSync(join(tmpdir(), 'fresh-root-'))
  try {
    const own = ['--mount', '--net', '--pid', '--fork', '--kill-child']
    const args = [...own, 'sh', '-c', enter, 'enter', place, checkout, given, script]
    return spawnSync('unshare', args, { encoding: 'utf8', cwd: '/' })
  } finally {
    rmSync(place, { recursive: true, force: true })
  }
}
