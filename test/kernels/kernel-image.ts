import { execFileSync } from 'node:child_process'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  renameSync,
  writeFileSync,
} from 'node:fs'
import { basename, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { quoted } from '../support/guest.js'
import { run, type Suite } from '../support/debian-packages.js'

/** The folder for unpacked packages and for results. */
export const cache = resolve('build/kernels')

/** A kernel that can be booted: its image, its modules and its first files. */
export interface KernelImage {
  /** Its name for operators, such as `6.12`. */
  readonly name: string
  /** The output of `uname -r`. */
  readonly release: string
  /** The version of its Debian package. */
  readonly version: string
  readonly suite: string
  readonly image: string
  readonly initramfs: string
  /** The folder of modules; a folder in it is named by the release. */
  readonly modules: string
}

const meta = 'linux-image-cloud-amd64'

/** The name of a suite's kernel, without a download: `6.12` for 6.12.117-1. */
export function nameIn(suite: Suite): string | undefined {
  return /^\d+\.\d+/.exec(suite.version(meta) ?? '')?.[0]
}

/** Downloads and unpacks the kernel of a suite, once. */
export function imageOf(suite: Suite, own: Suite): KernelImage {
  const version = suite.version(meta)
  const name = nameIn(suite)
  if (version === undefined || name === undefined) throw new Error(`${suite.name} has no ${meta}`)
  const packages = partsOf(suite, meta)
  const folder = suite.unpack(`linux-${version.replaceAll(/[^\w.+-]/g, '_')}`, packages)
  const places = ['usr/lib/modules', 'lib/modules'].map((path) => join(folder, path))
  const modules = places.find((path) => existsSync(path))
  const release = modules === undefined ? undefined : readdirSync(modules)[0]
  if (modules === undefined || release === undefined) {
    throw new Error(`${packages.join(', ')}: no modules inside`)
  }
  // Newer packages have the image beside the modules.
  const images = [join(folder, 'boot', `vmlinuz-${release}`), join(modules, release, 'vmlinuz')]
  const image = images.find((path) => existsSync(path))
  if (image === undefined) throw new Error(`${packages.join(', ')}: no kernel image inside`)
  if (!existsSync(join(modules, release, 'modules.dep'))) {
    // This is done once here, because a guest without KVM needs long for it at every start.
    shell(`find ${quoted(modules)} -name '*.ko.xz' -exec xz -d {} +`)
    shell(`find ${quoted(modules)} -name '*.ko.zst' -exec zstd -qd --rm {} +`)
    const depmod = ['-b', modules.replace(/\/lib\/modules$/, ''), release]
    run('depmod', depmod)
  }
  const initramfs = initramfsOf({ folder, modules, release }, own)
  return {
    name,
    release,
    version,
    suite: suite.name,
    image,
    initramfs,
    modules,
  }
}

/** The packages of a kernel; newer kernels have several. */
function partsOf(suite: Suite, name: string): readonly string[] {
  const parts = suite
    .dependsOn(name)
    .filter((other) => /^linux-(image|binary|modules)-\d/.test(other))
    .flatMap((other) => [other, ...partsOf(suite, other)])
  return [...new Set(parts)]
}

interface Unpacked {
  readonly folder: string
  readonly modules: string
  readonly release: string
}

/** Packs a busybox and the modules that reach the files of the host, in the order to load them. */
function initramfsOf({ folder, modules, release }: Unpacked, own: Suite): string {
  const archive = join(folder, 'initramfs')
  if (existsSync(archive)) return archive
  const busybox = join(own.unpack('busybox', ['busybox-static']), 'bin/busybox')
  const tree = join(folder, 'initramfs-tree')
  for (const path of ['bin', 'proc', 'root', 'dev', 'modules']) {
    mkdirSync(join(tree, path), { recursive: true })
  }
  copyFileSync(busybox, join(tree, 'bin/busybox'))
  copyFileSync(
    fileURLToPath(new URL('../../../test/kernels/initramfs', import.meta.url)),
    join(tree, 'init'),
  )
  const names = ['virtio_pci', 'virtiofs'].flatMap((module) => load(modules, release, module))
  const order = [...new Set(names)].map((path) => {
    const name = basename(path)
    copyFileSync(path, join(tree, 'modules', name))
    return name
  })
  writeFileSync(join(tree, 'modules/order'), order.join('\n'))
  const pack = `cd ${quoted(tree)} && find . | ${quoted(busybox)} cpio -H newc -o 2>/dev/null | gzip -1`
  shell(`${pack} > ${quoted(`${archive}.part`)}`)
  renameSync(`${archive}.part`, archive)
  return archive
}

/**
 * The files that modprobe would load, dependencies first. What is built into the kernel has no
 * file; newer packages have no list of it, so every module without a file counts as built in.
 */
export function load(modules: string, release: string, module: string): readonly string[] {
  const files = readFileSync(join(modules, release, 'modules.dep'), 'utf8')
  if (!new RegExp(`/${module.replaceAll('_', '[_-]')}\\.ko`).test(files)) return []
  const root = modules.replace(/\/lib\/modules$/, '')
  const shown = run('modprobe', ['-d', root, '-S', release, '--show-depends', module])
  return shown.split('\n').flatMap((line) => /^insmod (\S+)/.exec(line)?.[1] ?? [])
}

const shell = (command: string) => execFileSync('sh', ['-c', command], { timeout: 600_000 })
