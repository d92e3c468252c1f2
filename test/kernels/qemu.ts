import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  guestInit,
  runInGuest,
  type GuestOptions,
  type GuestResult,
  type Machine,
} from '../support/guest.js'
import { cache, type KernelImage } from './kernel-image.js'

/**
 * The program on the host's side, which is beside the sources and not beside the compiled files.
 */
const host = fileURLToPath(new URL('../../../test/kernels/host', import.meta.url))

export const accelerators = ['kvm', 'tcg'] as const
export type Accelerator = (typeof accelerators)[number]

/** The reason why no virtual machine can run here, or false. */
export function qemuSkip(): string | false {
  if (process.arch !== 'x64') return 'the kernels are those for x86-64'
  if (process.getuid?.() !== 0)
    return 'root is needed: the files of this machine are mounted for the guest'
  if (spawnSync('qemu-system-x86_64', ['--version']).error) {
    return 'qemu-system-x86_64 is not installed (Debian package qemu-system-x86)'
  }
  const paths = ['/usr/lib/qemu/virtiofsd', '/usr/libexec/virtiofsd']
  if (!paths.some((path) => existsSync(path))) {
    return 'virtiofsd is not installed (Debian package virtiofsd, or in Debian 12 qemu-system-common)'
  }
  return false
}

export interface QemuOptions extends GuestOptions {
  readonly accelerator: Accelerator
  /** Programs before those of this machine, see `Machine`. */
  readonly programs?: Readonly<Record<string, string>>
}

/** Boots a kernel in a virtual machine. It reads this machine's files and cannot change them. */
export function runInQemu(
  kernel: KernelImage,
  command: string,
  options: QemuOptions,
): Promise<GuestResult> {
  return runInGuest(machineOf(kernel, options), command, options)
}

/** Without KVM a newer processor ends in a double fault, and one with cx16 hangs. */
const processors: Readonly<Record<Accelerator, readonly string[]>> = {
  kvm: ['-cpu', 'max,arch-capabilities=off', '-smp', '2'],
  tcg: ['-cpu', 'Nehalem,-cx16', '-smp', '1'],
}

const machineOf = (kernel: KernelImage, options: QemuOptions): Machine => ({
  name: `Linux ${kernel.release}`,
  modules: kernel.modules,
  ...(options.programs ? { programs: options.programs } : {}),
  start: (words, scratch) => ({
    file: 'unshare',
    args: [
      ...['--mount', '--pid', '--fork', '--kill-child', '--mount-proc'],
      ...[host, scratch, options.memory ?? '1280M', 'qemu-system-x86_64'],
      ...['-M', 'q35,usb=off', '-nodefaults', '-display', 'none', '-no-reboot'],
      ...['-accel', options.accelerator, ...processors[options.accelerator]],
      ...['-serial', 'stdio', '-kernel', kernel.image, '-initrd', kernel.initramfs],
      ...['-append', ['console=ttyS0', `guest_init=${guestInit}`, ...words].join(' ')],
    ],
  }),
})

/**
 * Tries to boot with KVM, because a device of KVM may be there although no kernel boots on it. The
 * result is kept until the next boot of this machine.
 */
export async function chooseAccelerator(kernel: KernelImage): Promise<Accelerator> {
  if (!existsSync('/dev/kvm')) return 'tcg'
  const known = join(cache, 'accelerator')
  const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
  const [when, remembered] = existsSync(known) ? readFileSync(known, 'utf8').split(' ') : []
  if (when === boot) return remembered === 'kvm' ? 'kvm' : 'tcg'
  const tried = await runInQemu(kernel, 'true', { accelerator: 'kvm', timeoutMs: 120_000 }).then(
    ({ code }) => code === 0,
    () => false,
  )
  const accelerator = tried ? 'kvm' : 'tcg'
  writeFileSync(known, `${boot} ${accelerator}`)
  return accelerator
}
