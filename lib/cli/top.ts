import type { Command } from 'commander'
import { readFile } from 'node:fs/promises'
import { pause } from '../async.js'
import { addNodeOptions, get, seeNode, type NodeFlags, type SeenNode } from './seen-node.js'
import { addOutputOptions, printed, waitMs, type OutputFlags } from './shared-options.js'
import { countsConnections } from '../config/config.js'
import { KernelError, messageOf } from '../errors.js'
import { counted } from '../state/names.js'
import { daemonNumbers } from '../inspect/top/daemon-numbers.js'
import {
  rowsOfDaemon,
  rowsOfKernel,
  withSockets,
  type ServiceNumbers,
} from '../inspect/top/rows.js'
import { stopSignal, takesControl } from './process.js'
import { topText, withRates, type Look } from '../inspect/top/table.js'

interface TopFlags extends NodeFlags, OutputFlags {
  readonly once?: boolean
  readonly interval: string
}

const usage = `
In userspace mode, and with --flows in iptables, nftables and ebpf mode, the proxy counts every
connection. In ebpf mode without --flows it counts every connection that was translated at its socket.
The metrics server of the proxy must be on. For all other connections the command shows those that the
kernel tracks, and the counters of rules (iptables) or virtual servers (ipvs). "-" means that nothing
counts this number.`

/** Adds `kube-proxy top`, which shows Services by connections, bytes and errors. */
export function addTopCommand(program: Command): void {
  const command = addNodeOptions(
    program
      .command('top')
      .description('show Services by connections, bytes and errors, updated every few seconds'),
  )
    .option('--once', 'show the numbers once and end')
    .option('--interval <duration>', 'time between two updates', '2s')
  addOutputOptions(command, ', printed once').addHelpText('after', usage).action(top)
}

async function top(flags: TopFlags): Promise<void> {
  const intervalMs = waitMs('--interval', flags.interval)
  const isOnce = flags.once === true || flags.output !== undefined || !takesControl(process.stdout)
  const first = await look(flags)
  if (isOnce) {
    const rows = withRates(first, undefined)
    const columns = process.stdout.columns || 80
    const options = { columns, lines: undefined, hasRates: false, isWide: flags.output === 'wide' }
    process.stdout.write(
      printed(flags, {
        data: { mode: first.mode, note: first.note, services: rows },
        text: `${topText(rows, { ...options, title: titleOf(first) })}\n`,
      }),
    )
    return
  }
  await follow(flags, first, intervalMs)
}

interface NodeLook extends Look {
  readonly mode: string
  /** A text about numbers that are not counted, and how to count them; empty when all are. */
  readonly note: string
}

const clear = '\u001B[H\u001B[J'
const enter = '\u001B[?1049h\u001B[?25l'
const leave = '\u001B[?25h\u001B[?1049l'

/** Uses the alternate screen of the terminal, so that the old content comes back at the end. */
async function follow(flags: TopFlags, first: NodeLook, intervalMs: number): Promise<void> {
  const stop = stopSignal()
  let now = first
  let before: NodeLook | undefined
  let failure = ''
  const draw = () => {
    const { columns, rows: lines } = process.stdout
    const title = failure === '' ? titleOf(now) : failure
    // A terminal that does not know its size says 0.
    const size = { columns: columns || 80, lines: lines || 24 }
    const options = { title, ...size, hasRates: before !== undefined }
    process.stdout.write(`${clear}${topText(withRates(now, before), options)}`)
  }
  // Ctrl-Z: the shell needs its own screen, and the cursor. The kernel ignores SIGTSTP, but not
  // SIGSTOP, where no shell can let the program go on, as in `kubectl exec`.
  const rest = () => {
    process.stdout.write(leave)
    process.off('SIGTSTP', rest)
    process.kill(process.pid, 'SIGTSTP')
    process.on('SIGTSTP', rest)
    process.stdout.write(enter)
    draw()
  }
  process.stdout.write(enter)
  process.stdout.on('resize', draw)
  process.on('SIGTSTP', rest)
  try {
    for (;;) {
      draw()
      await pause(intervalMs, stop)
      if (stop.aborted) return
      try {
        const next = await look(flags)
        before = now
        now = next
        failure = ''
      } catch (error) {
        // The proxy may be restarting. The last numbers stay, below the error.
        failure = messageOf(error)
      }
    }
  } finally {
    process.stdout.off('resize', draw)
    process.off('SIGTSTP', rest)
    process.stdout.write(leave)
  }
}

function titleOf({ mode, rows, note }: NodeLook): string {
  const ports = counted(rows.length, 'service port')
  const head = `kube-proxy top: ${mode} mode, ${ports}`
  return note === '' ? head : `${head}\n${note}`
}

async function look(flags: TopFlags): Promise<NodeLook> {
  const seen = await seeNode(flags)
  const { mode, states, config } = seen
  if (countsConnections(mode, config.flows.enabled)) {
    const rows = rowsOfDaemon(states, daemonNumbers(await get(flags.daemon, '/metrics')))
    return { at: performance.now(), mode, rows, note: '' }
  }
  try {
    const tracked = await kernelRows(seen)
    const rows =
      mode === 'ebpf'
        ? withSockets(tracked, daemonNumbers(await get(flags.daemon, '/metrics')))
        : tracked
    return { at: performance.now(), mode, rows, note: await countingNote(mode) }
  } catch (error) {
    if (!(error instanceof KernelError) || error.kind !== 'denied') throw error
    throw new KernelError('denied', `${error.message}; run it as root, or with CAP_NET_ADMIN`, {
      cause: error,
    })
  }
}

async function kernelRows({ mode, states, config }: SeenNode): Promise<readonly ServiceNumbers[]> {
  const { listTrackedFlows } = await import('../kernel/conntrack.js')
  const { kernelCounters } = await import('../inspect/top/counters.js')
  const flows = []
  for (const { family } of states) flows.push(...(await listTrackedFlows(family)))
  return rowsOfKernel(states, flows, await kernelCounters(mode, states, config))
}

async function countingNote(mode: string): Promise<string> {
  // Virtual servers count their bytes themselves.
  if (mode === 'ipvs') return ''
  if (mode === 'ebpf') {
    return 'OPEN counts all connections; the other columns count those translated at sockets.'
  }
  const acct = await readFile('/proc/sys/net/netfilter/nf_conntrack_acct', 'utf8').catch(() => '')
  if (acct.trim() === '1') return ''
  return 'Bytes are not counted; sysctl -w net.netfilter.nf_conntrack_acct=1 makes the kernel count them.'
}
