import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { addressFamilies } from '../../kernel/addresses.js'
import { ifPossible, KernelError, messageOf } from '../../errors.js'
import { LegacyRules } from './legacy-rules.js'
import { mark, type LegacyMarks } from './legacy-marks.js'
import { openPacketLog, type PacketLog } from '../../kernel/packet-log.js'
import { pause } from '../../async.js'
import type { Iptables } from '../../kernel/iptables.js'
import type { TraceEvent } from './events.js'
import type { TraceTarget } from './trace-rule.js'

const wantedLogger = 'nfnetlink_log'
/** The kernel sends traces to the first group. */
const group = 0
const lookMs = 20

/**
 * The same as followTraces for the rules of iptables-legacy. Its TRACE reports each rule by number
 * to the logger of the network namespace. During the trace that logger is nfnetlink_log, whose
 * messages this process reads.
 */
export async function followLegacyTraces(
  target: TraceTarget,
  iptables: Iptables,
  on: { readonly ready: () => void; readonly event: (event: TraceEvent) => void },
  signal: AbortSignal,
): Promise<void> {
  const file = `/proc/sys/net/netfilter/nf_log/${addressFamilies[target.family]}`
  const marks: LegacyMarks = {
    target,
    logger: { file, before: loggerOf(file) },
    comment: `kube-proxy-trace-${process.pid}`,
  }
  const log = listen()
  const cleaner = await startCleaner(marks)
  try {
    setLogger(file)
    await mark(iptables, marks).catch((cause: unknown) => {
      throw new KernelError(
        'unsupported',
        `follow packets: iptables-legacy cannot mark them: ${messageOf(cause)}; this needs the kernel modules iptable_raw and xt_TRACE`,
        { cause },
      )
    })
    const rules = new LegacyRules(await iptables.save(), target.family)
    on.ready()
    while (!signal.aborted) {
      for (const packet of log.read()) rules.events(packet, marks.comment).forEach(on.event)
      await pause(lookMs, signal)
    }
    await rules.check(iptables)
  } finally {
    log.close()
    await cleaner.end()
  }
}

function listen(): PacketLog {
  try {
    return openPacketLog(group)
  } catch (cause) {
    const why = isTaken(group)
      ? 'another program, such as ulogd, listens to NFLOG group 0 here; stop it during the trace'
      : messageOf(cause)
    throw new KernelError('unsupported', `follow packets of iptables-legacy: ${why}`, { cause })
  }
}

/**
 * Whether another program listens. The kernel reports that with the same error as missing rights.
 */
function isTaken(wanted: number): boolean {
  const listeners = readText('/proc/net/netfilter/nfnetlink_log') ?? ''
  return listeners.split('\n').some((line) => Number.parseInt(line, 10) === wanted)
}

const readText = (file: string) => ifPossible(() => readFileSync(file, 'utf8'))

function loggerOf(file: string): string {
  const before = readText(file)
  if (before !== undefined) return before.trim()
  throw new KernelError(
    'unsupported',
    `follow packets of iptables-legacy: there is no ${file}, which selects the kernel's logger; \`kube-proxy explain IP:PORT --live\` checks a way rule by rule instead`,
  )
}

function setLogger(file: string): void {
  try {
    writeFileSync(file, wantedLogger)
  } catch (cause) {
    throw new KernelError(
      'unsupported',
      `follow packets of iptables-legacy: ${file} does not accept ${wantedLogger} (${messageOf(cause)}); this needs the kernel module nfnetlink_log and a writable /proc/sys`,
      { cause },
    )
  }
}

/** Starts the process that removes the marks, even if this one is killed. */
async function startCleaner(marks: LegacyMarks) {
  const program = fileURLToPath(new URL('./legacy-cleaner.js', import.meta.url))
  const child: ChildProcess = spawn(process.execPath, [program, JSON.stringify(marks)], {
    stdio: ['pipe', 'pipe', 'inherit'],
    // It has a session of its own, so that Ctrl-C ends the trace and not the cleaner.
    detached: true,
  })
  const { stdin, stdout } = child
  if (!stdin || !stdout) {
    child.on('error', () => undefined)
    throw new KernelError(
      'failed',
      'start the cleaner: no file descriptors left; raise their limit',
    )
  }
  const exited = once(child, 'exit')
  await Promise.race([once(stdout, 'data'), exited])
  return {
    end: async () => {
      stdin.end()
      await exited
    },
  }
}
