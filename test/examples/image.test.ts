import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { runCommand } from '../support/run-command.js'
import { ask, service, skip, sliceOf, withProxyWorld, write } from '../e2e/proxy-world.js'
import type { World } from '../../lib/lab/world/world.js'
import { until } from '../support/until.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))

interface Instruction {
  readonly word: string
  readonly rest: string
}

/** The instructions of a Dockerfile. An escaped line end continues the line. */
function instructionsOf(text: string): readonly Instruction[] {
  const lines = text
    .replace(/^\s*#.*\n/gm, '')
    .replaceAll('\\\n', ' ')
    .split('\n')
  return lines
    .filter((line) => line.trim() !== '')
    .map((line) => {
      const [word = '', ...rest] = line.trim().split(/\s+/)
      return { word, rest: rest.join(' ') }
    })
}

const dockerfile = readFileSync(join(root, 'Dockerfile'), 'utf8')
const instructions = instructionsOf(dockerfile)
const all = (word: string) => instructions.filter((of) => of.word === word).map(({ rest }) => rest)
const lastStage = instructions.slice(instructions.findLastIndex(({ word }) => word === 'FROM'))

t.test('the Dockerfile is pinned, repeatable, and copies nothing it does not need', (t) => {
  const [build, final] = all('FROM')
  t.match(build, /^node:\d+\.\d+\.\d+-\w+-slim AS build$/, 'the base to the patch version')
  t.equal(final, 'scratch', 'and nothing of it in the image')
  t.same(all('ADD'), [])
  t.notMatch(all('COPY').join('\n'), /^\. /m, 'never the whole folder')
  const runs = all('RUN').join('\n')
  t.match(runs, 'npm ci')
  t.match(runs, '--no-install-recommends')
  t.match(runs, 'rm -rf /var/lib/apt/lists')
  t.notMatch(runs, /curl|wget|latest|npm install/)
  for (const copied of all('COPY').filter((rest) => !rest.startsWith('--from')))
    for (const source of copied.split(' ').slice(0, -1)) t.ok(lstatSync(join(root, source)), source)
  t.end()
})

t.test('the image declares its user with the reason, its command, and its health check', (t) => {
  t.same(
    lastStage.map(({ word }) => word),
    ['FROM', 'COPY', 'ENV', 'USER', 'HEALTHCHECK', 'ENTRYPOINT'],
  )
  t.match(dockerfile, /# Root, of whose rights[^]*\nUSER 0:0/, 'root has its reason')
  // The image has no shell, so the form with a shell would not work.
  t.ok(Array.isArray(JSON.parse(all('ENTRYPOINT')[0] ?? '')))
  t.ok(Array.isArray(healthCheck()))
  t.end()
})

function healthCheck(): readonly string[] {
  return JSON.parse(/CMD (\[.*\])/.exec(all('HEALTHCHECK')[0] ?? '')?.[1] ?? '') as string[]
}

const missing = ['capsh', 'unshare', 'xtables-legacy-multi', 'nft', 'ipset', 'dpkg'].filter(
  (program) => spawnSync(program, ['--version'], { env: searchPath() }).error,
)
const skipImage =
  skip || (missing.length > 0 ? `not installed: ${missing.join(', ')} (Debian packages)` : false)

function searchPath() {
  return { ...process.env, PATH: `${process.env['PATH'] ?? ''}:/usr/sbin:/sbin` }
}

/** Enters the image as a container runtime does: its mounts, a read-only root, two capabilities. */
const enter = `
set -e
mount --bind "$1" "$1"
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t sysfs -o ro sysfs "$1/sys"
mount --bind "$2" "$1/etc/kube-proxy"
mount -o remount,bind,ro "$1"
mount -o remount,bind,ro "$1/etc/kube-proxy"
image=$1
rights=$3
path=$4
shift 4
exec env -i "$path" /usr/sbin/capsh --chroot="$image" $rights --no-new-privs --shell=/usr/bin/node -- "$@"
`
const asRoot = (() => {
  const lastCapability = 40
  const kept = new Set([12, 13])
  const dropped = Array.from({ length: lastCapability + 1 }, (_, number) => number)
  return `--drop=${dropped.filter((number) => !kept.has(number)).join(',')}`
})()

interface Descriptor {
  readonly digest: string
  readonly size: number
}

/** A file of an OCI layout, with its digest checked. */
function blobOf(layout: string, { digest, size }: Descriptor): Buffer {
  const bytes = readFileSync(join(layout, 'blobs', digest.replace(':', '/')))
  const sha256 = createHash('sha256').update(bytes).digest('hex')
  if (digest !== `sha256:${sha256}` || size !== bytes.length) throw new Error(`wrong: ${digest}`)
  return bytes
}

/** Unpacks as a runtime does: index, manifest, configuration, and one layer over the other. */
function unpack(layout: string, to: string): object {
  const index = JSON.parse(readFileSync(join(layout, 'index.json'), 'utf8')) as {
    readonly manifests: readonly [Descriptor]
  }
  const manifest = JSON.parse(blobOf(layout, index.manifests[0]).toString()) as {
    readonly config: Descriptor
    readonly layers: readonly Descriptor[]
  }
  mkdirSync(to)
  for (const layer of manifest.layers) {
    const input = blobOf(layout, layer)
    const { status, stderr } = spawnSync('tar', ['-xzf', '-', '-C', to], { input })
    if (status !== 0) throw new Error(String(stderr))
  }
  return JSON.parse(blobOf(layout, manifest.config).toString()) as object
}

async function made(file: string, ...args: string[]): Promise<string> {
  // A busy machine has taken more than two minutes to compress an image.
  const { code, stdout, stderr } = await runCommand(file, args, { timeoutMs: 900_000 })
  if (code !== 0) throw new Error(stderr)
  return stdout.trim()
}

async function make(t: Test, place: string): Promise<string> {
  const rootfs = join(place, 'rootfs')
  await made('sh', '-c', 'umask 077; exec "$0" "$1"', join(root, 'scripts/rootfs'), rootfs)
  const hidden = ['!', '-type', 'l', '!', '-perm', '-a=r']
  t.equal(await made('find', rootfs, ...hidden), '', 'the user of the image reads every file')
  const layout = (name: string) =>
    made(process.execPath, join(root, 'scripts/image.mjs'), rootfs, join(place, name))
  const digest = await layout('layout')
  // Node is most of the image, and most of the time to make it.
  rmSync(join(rootfs, 'usr/bin/node'))
  const without = await layout('without-node')
  await made('find', rootfs, '-exec', 'touch', '--no-dereference', '--date=@1', '{}', '+')
  t.equal(await layout('again'), without, 'the same files at another time: the same bytes')
  rmSync(rootfs, { recursive: true })
  t.match(digest, /^sha256:[0-9a-f]{64}$/)
  const folder = join(place, 'image')
  t.match(unpack(join(place, 'layout'), folder), {
    os: 'linux',
    config: {
      Entrypoint: JSON.parse(all('ENTRYPOINT')[0] ?? '[]') as string[],
      Env: all('ENV'),
      User: '0:0',
    },
  })
  return folder
}

async function image(t: Test, act: (folder: string) => Promise<void>): Promise<void> {
  const place = mkdtempSync(join(tmpdir(), 'image-'))
  try {
    const folder = await make(t, place)
    const { stdout } = await runCommand('du', ['-sm', folder])
    const nodeMib = statSync(process.execPath).size / 2 ** 20
    const besides = parseInt(stdout) - nodeMib
    t.comment(`${parseInt(stdout)} MiB, of which ${nodeMib.toFixed(0)} are Node`)
    t.ok(besides > 10 && besides < 75, 'no more than what README says, and a little')
    await act(folder)
  } finally {
    rmSync(place, { recursive: true, force: true })
  }
}

function inImage(world: World, folder: string, manifests: string, args: readonly string[]) {
  const argv = [
    'unshare',
    '-m',
    'sh',
    '-c',
    enter,
    'enter',
    folder,
    manifests,
    asRoot,
    ...all('ENV'),
    ...args,
  ]
  const child = world.spawn('node', argv)
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text))
  }
  return { child, output: () => output }
}

/**
 * The same Node takes the compiled code. Without it, or if it is broken, the program starts too.
 */
function looksAtCompiled(t: Test, programs: string): void {
  const lib = join(root, 'build/lib')
  const compiled = join(programs, `program.${process.version}.compiled`)
  const script = `
    import { readFileSync } from 'node:fs'
    import { compileProgram } from '${lib}/cli/one-file.js'
    import { setUpEngine } from '${lib}/engine.js'
    setUpEngine()
    const compiled = readFileSync('${compiled}')
    console.log(compileProgram('${programs}', compiled).cachedDataRejected)`
  const output = (...argv: string[]) =>
    spawnSync(process.execPath, argv, { encoding: 'utf8' }).stdout.trim()
  t.equal(output('--input-type=module', '--eval', script), 'false', 'taken')
  const version = () => output(join(programs, 'main.js'), '--version')
  const whole = readFileSync(compiled)
  for (const content of [whole, whole.subarray(0, 1000), Buffer.from('?'), undefined]) {
    if (content === undefined) rmSync(compiled)
    else writeFileSync(compiled, content)
    t.match(version(), /^kube-proxy-ts v/, `with ${content?.length ?? 'no'} bytes`)
  }
  writeFileSync(compiled, whole)
}

t.test('the library of koffi is prebuilt for both architectures of the image', (t) => {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as {
    readonly packages: Readonly<Record<string, { readonly optional?: boolean }>>
  }
  for (const name of ['linux-x64', 'linux-arm64'])
    t.ok(packages[`node_modules/@koromix/koffi-${name}`]?.optional, name)
  t.end()
})

t.test(
  'the root file system serves read-only, with two capabilities and without a shell',
  { skip: skipImage },
  (t) =>
    image(t, async (folder) => {
      const programs = ['bin', 'sbin'].flatMap((of) => readdirSync(join(folder, 'usr', of)))
      t.notOk(programs.some((name) => /^(sh|bash|dash|busybox|apt|dpkg|npm)$/.test(name)))
      const program = readFileSync(join(folder, 'app/build/lib/cli/program.cjs'), 'utf8')
      t.match(program, '// build/lib/cli/program.js', 'files are named where they begin')
      t.notMatch(program, '// build/lib/lab/', 'no laboratory')
      looksAtCompiled(t, join(folder, 'app/build/lib/cli'))
      await withProxyWorld('image', async ({ world, folder: manifests }) => {
        for (const mode of ['nftables', 'iptables', 'userspace']) {
          await t.test(mode, async (t) => {
            await write(manifests, 'web.yaml', service, sliceOf('pod-1'))
            const [, program = ''] = JSON.parse(all('ENTRYPOINT')[0] ?? '[]') as string[]
            const { child, output } = inImage(world, folder, manifests, [
              program,
              ...[
                '--manifests=/etc/kube-proxy',
                `--proxy-mode=${mode}`,
                '--proxy-mode-fallback=none',
              ],
              ...['--hostname-override=node-1', '--cluster-cidr=10.244.0.0/16'],
            ])
            try {
              await until('an answer', async () => (await ask(world)) === 'pod-1').catch(
                (error: unknown) => {
                  throw new Error(`${String(error)}\n${output()}`)
                },
              )
              const healthy = inImage(world, folder, manifests, healthCheck().slice(1))
              await until('the health check ends', () => healthy.child.exitCode !== null)
              t.equal(healthy.child.exitCode, 0, 'HEALTHCHECK')
              // Userspace mode can make no folder for takeovers on a read-only root. It logs this.
              const command = "require('child_process').execFileSync('kube-proxy', ['diff'])"
              const diff = inImage(world, folder, manifests, ['-e', command])
              await until('the comparison ends', () => diff.child.exitCode !== null)
              t.equal(diff.child.exitCode, 0, `kubectl exec: ${diff.output()}`)
              const rest = output().replace(/.*cannot take these listeners over.*/g, '')
              t.notMatch(rest, /EROFS|EACCES|ENOENT/)
              const rights = readFileSync(`/proc/${child.pid}/status`, 'utf8')
              t.match(rights, /^CapEff:\t0000000000003000$/m, 'NET_ADMIN and NET_RAW')
            } finally {
              child.kill('SIGKILL')
              await until('its end', () => child.signalCode !== null || child.exitCode !== null)
              // Rules outlive their process, and would answer for the next one.
              await world.exec('node', ['nft', 'flush', 'ruleset'])
            }
            t.not(await ask(world), 'pod-1', 'nobody answers any more')
          })
        }
      })
    }),
)
