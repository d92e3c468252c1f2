import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, renameSync, statSync } from 'node:fs'
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { runInGuest, type GuestOptions, type GuestResult, type Machine } from './guest.js'

const named = process.env['UML_KERNEL'] ?? ''
/**
 * Another kernel than Debian's, with everything built in, as scripts/uml-kernel makes it: newer
 * ones have quicker system calls.
 */
export const ownKernel = named === '' ? undefined : resolve(named)

/** Debian's kernel ends at once on processors with AMX, unless a library helps it. */
const needsLibrary = () => /^flags\s*:.* amx_tile\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'))
/** The source lies beside the other sources, not the compiled files. */
const source = fileURLToPath(new URL('../../../test/support/uml-registers.c', import.meta.url))
const library = fileURLToPath(new URL('../../uml-registers.so', import.meta.url))

/** Compiles the library, once. Returns the reason if that cannot be done. */
function compileLibrary(): string | false {
  if (existsSync(library) && statSync(library).mtimeMs > statSync(source).mtimeMs) return false
  const file = `${library}.${process.pid}`
  const args = ['-O2', '-shared', '-fPIC', '-nostdlib', '-o', file, source]
  const { error, stderr, status } = spawnSync('cc', args, { encoding: 'utf8' })
  if (error) return 'User Mode Linux needs cc (Debian package gcc) on this processor'
  if (status !== 0) return `cc could not compile ${source}: ${stderr}`
  // Other tests may do the same at this moment.
  renameSync(file, library)
  return false
}

/** The reason why User Mode Linux cannot run here, or false. */
export const umlSkip: string | false = (() => {
  if (process.platform !== 'linux') return 'User Mode Linux runs on Linux only'
  const found = spawnSync('linux.uml', ['--version'])
  if (found.error) return 'linux.uml is not installed (Debian package user-mode-linux)'
  if (!existsSync('/usr/lib/uml/modules')) return 'the modules of User Mode Linux are missing'
  if (!existsSync('/sbin/modprobe')) return 'modprobe is not installed (Debian package kmod)'
  const failed = ownKernel === undefined && compileLibrary()
  return needsLibrary() && failed
})()

/** The programs of the older backend of iptables, which this kernel supports better. */
const programs = Object.fromEntries(
  ['iptables', 'ip6tables'].flatMap((tool) =>
    ['', '-save', '-restore'].map((verb) => [`${tool}${verb}`, `/usr/sbin/${tool}-legacy${verb}`]),
  ),
)

/**
 * Where the machine runs. Its kernel and its programs are processes that wait for each other, so
 * one processor is enough. To wake another one takes three times as long as a system call.
 */
function processor(): number {
  const status = readFileSync('/proc/self/status', 'utf8')
  const allowed = (/^Cpus_allowed_list:\s*(.*)$/m.exec(status)?.[1] ?? '0').split(',')
  const processors = allowed.flatMap((range) => {
    const [first = 0, last = first] = range.split('-').map(Number)
    return Array.from({ length: last - first + 1 }, (_, index) => first + index)
  })
  return processors[process.pid % processors.length] ?? 0
}

/** A tap device of a namespace that the machine has as `vec0`. */
interface GuestNetwork {
  readonly namespace: string
  readonly device: string
}

interface UmlOptions extends GuestOptions {
  readonly network?: GuestNetwork
}

const machineOf = ({ memory = '1G', network }: UmlOptions): Machine => ({
  name: 'User Mode Linux',
  modules: '/usr/lib/uml/modules',
  programs: ownKernel === undefined ? programs : { modprobe: '#!/bin/sh\n' },
  start: (words, scratch) => ({
    file: network ? 'ip' : 'taskset',
    args: [
      ...(network ? ['netns', 'exec', network.namespace, 'taskset'] : []),
      ...['--cpu-list', String(processor()), ownKernel ?? 'linux.uml'],
      ...words,
      ...(network ? [`vec0:transport=tap,ifname=${network.device},depth=128,gro=1`] : []),
      ...(ownKernel === undefined ? [] : ['seccomp=auto']),
      `mem=${memory}`,
      'root=/dev/root',
      'rootfstype=hostfs',
      'rootflags=/',
      'ro',
      `uml_dir=${scratch}`,
      'con=null',
      'con0=fd:0,fd:1',
      'con1=null',
    ],
    // User Mode Linux keeps the machine's memory in a file in TMPDIR.
    env: {
      TMPDIR: existsSync('/dev/shm') ? '/dev/shm' : scratch,
      HOME: scratch,
      ...(ownKernel === undefined && existsSync(library) ? { LD_PRELOAD: library } : {}),
    },
  }),
})

/**
 * Boots a Linux kernel with IPVS as a plain process and runs one shell command in it. The kernel
 * reads this machine's files and cannot change them. This takes about two seconds more than the
 * command, and needs no rights.
 */
export function runInUml(command: string, options: UmlOptions = {}): Promise<GuestResult> {
  return runInGuest(machineOf(options), command, options)
}

/** The environment of the conformance suite in User Mode Linux, which can be slow for a moment. */
export const umlPatience = 'CONFORMANCE_PATIENCE=10'
