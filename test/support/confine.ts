/**
 * Runs a program under a profile of system calls, as a container runtime does:
 *   node confine.js PROFILE.json PROGRAM ARGUMENT…
 * It keeps the capabilities of its caller; `setpriv` or `capsh` can take them away before.
 */
import { readFileSync } from 'node:fs'
import koffi from 'koffi'

interface Profile {
  readonly defaultAction: string
  readonly syscalls: readonly { readonly names: readonly string[]; readonly action: string }[]
}

const allow = 0x7fff_0000
/** The call fails with EPERM, as under runtimes when the profile names no other error. */
const refuse = 0x0005_0001
/** What systemd does unless a unit names an error. */
const end = 0x8000_0000
const otherwise = new Map([
  ['SCMP_ACT_ERRNO', refuse],
  ['SCMP_ACT_KILL_PROCESS', end],
])
/** libseccomp does not know the name: the call is newer, or of another architecture. */
const unknown = -1

const library = koffi.load('libseccomp.so.2')
const open = library.func('void *seccomp_init(uint32_t action)')
const resolve = library.func('int seccomp_syscall_resolve_name(const char *name)')
const add = library.func(
  'int seccomp_rule_add_array(void *filter, uint32_t action, int call, uint32_t count, void *rules)',
)
const load = library.func('int seccomp_load(void *filter)')
// The exec ends the other threads, so the filter of this thread holds for the whole process.
const libc = koffi.load(null)
const exec = libc.func('int execvp(const char *file, const char **argv)')
const fcntl = libc.func('int fcntl(int fd, int command, long value)')
const setFlags = 2

const [profileFile = '', ...argv] = process.argv.slice(2)
const profile = JSON.parse(readFileSync(profileFile, 'utf8')) as Profile
const action = otherwise.get(profile.defaultAction)
if (action === undefined) throw new Error('everything else must be refused')
const filter: unknown = open(action)
for (const { names, action } of profile.syscalls) {
  if (action !== 'SCMP_ACT_ALLOW') throw new Error(`no action ${action} here`)
  for (const name of names) {
    const call = Number(resolve(name))
    if (call !== unknown && Number(add(filter, allow, call, 0, null)) !== 0)
      throw new Error(`libseccomp refuses ${name}`)
  }
}
if (Number(load(filter)) !== 0) throw new Error('the kernel does not take the filter')
// Node opens its streams so that an exec closes them.
for (const stream of [0, 1, 2]) fcntl(stream, setFlags, 0)
exec(argv[0], [...argv, null])
throw new Error(`start ${argv[0] ?? 'nothing'}: error ${koffi.errno()}`)
