import { release } from 'node:os'
import { ifPossible, KernelError, messageOf } from '../../errors.js'
import { Assembler } from '../../kernel/bpf/assembler.js'
import { attachedPrograms } from '../../kernel/bpf/attached.js'
import { createLink } from '../../kernel/bpf/link.js'
import { loadProgram } from '../../kernel/bpf/program.js'
import { networkCookie } from '../../kernel/network-namespaces.js'
import { openSystemCalls, type SystemCalls } from '../../kernel/bpf/system-calls.js'
import { openCgroup, type OpenCgroup } from '../../kernel/cgroup.js'
import { atLeast } from '../../platform.js'
import { missingIn } from '../findings.js'
import type { Finding, Log } from '../mode.js'
import { loadAll } from './apply.js'
import { OpenFlowMaps } from './flow-maps.js'
import { otherProxies } from './names.js'
import { NetworkNote } from './network-note.js'
import { whyNot } from './pins.js'
import { verdicts } from './programs/context.js'
import { socketHooks } from './programs/programs.js'
import type { EbpfSettings } from './settings.js'
import { OpenSharedMaps } from './shared-maps.js'
import { whyNotEnding } from './stale-sockets.js'
import { FamilyTables, sizesFor } from './tables.js'

interface ProbeDeps {
  readonly settings: Pick<EbpfSettings, 'cgroup' | 'bpffs' | 'sockets'>
  readonly log: Log
  readonly openCalls?: () => SystemCalls
  /** What `uname -r` prints. */
  readonly kernel?: string
}

const leastKernel = [5, 18] as const

/** The settings if no configuration is known: the whole node. */
export const probeDefaults: ProbeDeps['settings'] = {
  cgroup: '',
  bpffs: '/sys/fs/bpf',
  sockets: 'all',
}

/** Finds out whether this node has what the mode needs. It tries everything, and undoes it. */
export function probeSockets(deps: ProbeDeps): readonly Finding[] {
  const findings: Finding[] = [programsFinding(deps)]
  if (missingIn(findings).length > 0) return findings
  findings.push(...cgroupFindings(deps), pinFinding(deps))
  return findings
}

function programsFinding(deps: ProbeDeps): Finding {
  const { settings, log, openCalls = openSystemCalls, kernel = release() } = deps
  const what = 'socket programs of eBPF (Linux 5.18 or newer)'
  try {
    const seen = tryPrograms(openCalls(), settings, log)
    return { what, ok: true, required: true, seen, fix: '' }
  } catch (error) {
    const fix = fixFor(error, kernel)
    return { what, ok: false, required: true, seen: messageOf(error), fix }
  }
}

/** An older kernel refuses with many words: before 5.11 it denies even root memory for the maps. */
function fixFor(error: unknown, kernel: string): string {
  if (!atLeast(kernel, leastKernel)) return `use Linux 5.18 or newer; this is ${kernel}`
  if (messageOf(error).includes('EMFILE')) return 'raise the limit of open files (LimitNOFILE=)'
  return error instanceof KernelError && error.kind === 'denied'
    ? 'run as root or with CAP_BPF and CAP_NET_ADMIN; who has them and may not is kept from bpf(2) by seccomp or a security module'
    : 'use a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF'
}

/** Loads every program with empty maps, and unloads it again. */
function tryPrograms(
  calls: SystemCalls,
  { sockets }: Pick<EbpfSettings, 'sockets'>,
  log: Log,
): string {
  const opened: { close(): void }[] = []
  const open = <T extends { close(): void }>(one: T): T => {
    opened.push(one)
    return one
  }
  const now = () => performance.now()
  try {
    const ip4 = open(new FamilyTables(calls, 'IPv4', sizesFor(undefined), now))
    const ip6 = open(new FamilyTables(calls, 'IPv6', sizesFor(undefined), now))
    const shared = open(new OpenSharedMaps(calls, undefined, log))
    const maps = { IPv4: ip4, IPv6: ip6, shared: shared.maps }
    const hostCookie = networkCookie()
    const openNumber = shared.maps.open.id
    const { maps: flows } = open(new OpenFlowMaps(calls, undefined, log))
    const facts = { hostCookie, sockets, connectedUdp: true, openNumber }
    const note = open(new NetworkNote(calls, hostCookie))
    const loaded = loadAll(calls, { maps, flows, ...facts })
    for (const program of loaded.values()) opened.push({ close: () => calls.close(program) })
    for (const program of loaded.values()) note.addTo(program)
    return `the kernel takes all ${loaded.size}`
  } finally {
    for (const each of opened) each.close()
  }
}

function cgroupFindings({ settings, openCalls = openSystemCalls }: ProbeDeps): readonly Finding[] {
  const what = 'cgroup of version 2'
  let cgroup: OpenCgroup
  try {
    cgroup = openCgroup(settings.cgroup)
  } catch (error) {
    const fix =
      settings.cgroup === ''
        ? 'mount cgroup2, such as at /sys/fs/cgroup/unified, or set ebpf.cgroup to a folder of it'
        : 'set ebpf.cgroup to a folder of cgroup2, or leave it empty for the whole node'
    return [{ what, ok: false, required: true, seen: messageOf(error), fix }]
  }
  try {
    const calls = openCalls()
    const shared = [otherProxyFinding(calls, cgroup), attachFinding(calls, cgroup)]
    return [reachFinding(cgroup, settings), ...shared, udpFinding()]
  } finally {
    cgroup.close()
  }
}

function reachFinding(
  { path, isRoot }: OpenCgroup,
  { cgroup }: Pick<EbpfSettings, 'cgroup'>,
): Finding {
  const what = 'cgroup of version 2'
  // If a folder is configured, only its processes are wanted, so it need not be the root.
  const ok = isRoot || cgroup !== ''
  const seen = isRoot ? `${path}, the root` : `${path}, with some processes of this machine`
  const fix = ok ? '' : 'run in the cgroup namespace of the host; others take the packet path'
  return { what, ok, required: false, seen, fix }
}

function otherProxyFinding(calls: SystemCalls, cgroup: OpenCgroup): Finding {
  const what = 'no socket programs of other proxies'
  try {
    const names = (['connect4', 'connect6'] as const).flatMap((hook) =>
      attachedPrograms(calls, cgroup.fd, hook, 'all').map(({ name }) => name),
    )
    for (const { owner, prefixes } of otherProxies) {
      const name = names.find((each) => prefixes.some((prefix) => each.startsWith(prefix)))
      if (name === undefined) continue
      const fix = `end the kube-proxy replacement of ${owner}, or use another mode`
      return { what, ok: false, required: true, seen: `${name} of ${owner}`, fix }
    }
    return { what, ok: true, required: true, seen: 'none', fix: '' }
  } catch (error) {
    return { what, ok: true, required: false, seen: messageOf(error), fix: '' }
  }
}

/**
 * Attaches a program that does nothing at each hook. The kernel refuses that where other software
 * attached a program that shares its hook with none.
 */
function attachFinding(calls: SystemCalls, { fd: cgroup }: OpenCgroup): Finding {
  const what = 'hooks of the cgroup that take programs'
  const code = new Assembler().set('r0', verdicts.goOn).exit().finish()
  for (const hook of socketHooks) {
    try {
      const program = loadProgram(calls, { name: 'tries_to_attach', hook, code })
      try {
        calls.close(createLink(calls, { hook, program, cgroup }))
      } finally {
        calls.close(program)
      }
    } catch (error) {
      const there = ifPossible(() => attachedPrograms(calls, cgroup, hook, 'all')) ?? []
      const names = there.map(({ name }) => name).join(', ')
      const seen = names === '' ? messageOf(error) : `${messageOf(error)}, beside ${names}`
      const fix =
        'let the program that is there be attached with BPF_F_ALLOW_MULTI, or use another mode'
      return { what, ok: false, required: true, seen, fix }
    }
  }
  return { what, ok: true, required: true, seen: `all ${socketHooks.length}`, fix: '' }
}

function udpFinding(): Finding {
  const what = 'connected UDP sockets can be ended'
  const missing = whyNotEnding()
  if (missing === undefined) return { what, ok: true, required: false, seen: 'works', fix: '' }
  const fix = 'run as root with hostPID; without it connected UDP takes the packet path'
  return { what, ok: false, required: false, seen: missing, fix }
}

function pinFinding({ settings: { bpffs } }: ProbeDeps): Finding {
  const what = 'bpffs'
  const missing = whyNot(bpffs)
  if (missing === undefined) return { what, ok: true, required: false, seen: bpffs, fix: '' }
  const fix =
    'mount one (mount -t bpf bpf /sys/fs/bpf); without it connections take the packet path while the proxy restarts'
  return { what, ok: bpffs === '', required: false, seen: missing, fix }
}
