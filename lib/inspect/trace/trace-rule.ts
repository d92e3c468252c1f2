import { spawn, type ChildProcess } from 'node:child_process'
import { readdir, readFile, readlink } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { aborted } from '../../async.js'
import { KernelError } from '../../errors.js'
import { runCommand } from '../../kernel/command.js'
import { parseTraceLine, type TraceEvent } from './events.js'
import type { IpFamily } from '../../state/ip.js'
import type { Protocol } from '../../state/names.js'
import { programEnvironment } from '../../kernel/iptables/command.js'

/** Which connections are to be followed. */
export interface TraceTarget {
  readonly family: IpFamily
  readonly ip: string
  readonly port: number
  readonly protocol: Protocol
}

/**
 * Marks new connections to the target for tracing, in a separate table, and passes on the kernel's
 * events until the signal. The kernel removes the table when the process that made it ends, so
 * nothing is left to clean up.
 */
export async function followTraces(
  target: TraceTarget,
  on: { readonly ready: () => void; readonly event: (event: TraceEvent) => void },
  signal: AbortSignal,
): Promise<void> {
  const monitor = start([...(await withParent()), 'nft', 'monitor', 'trace'])
  const owner = start(['nft', '-i'])
  const children = [monitor, owner]
  const ended = children.map(({ exit }) => exit)
  try {
    createInterface({ input: monitor.stdout }).on('line', (line) => {
      const event = parseTraceLine(line)
      // A node may have no other rules: then only this table shows the packet.
      const isOwn = event?.table.endsWith(` ${tableName}`) === true
      if (event && (event.kind === 'packet' || !isOwn)) on.event(event)
    })
    owner.stdin.write(tableText(target))
    await Promise.race([untilListening(monitor.child.pid), ...ended])
    await Promise.race([untilPresent(), ...ended])
    if (!signal.aborted) on.ready()
    await Promise.race([aborted(signal), ...ended])
  } finally {
    owner.stdin.end()
    for (const { child } of children) child.kill('SIGTERM')
    await Promise.allSettled(ended)
  }
}

const tableName = `kube-proxy-trace-${process.pid}`

/**
 * The priority is after connection tracking, which finds new connections, and before every rule of
 * a proxy: NAT of destinations is at -100, and nftables mode checks source ranges at -110. The
 * chains behind the routing are empty: they only show that a packet came there.
 */
function tableText({ family, ip, port, protocol }: TraceTarget): string {
  const address = `${family === 'IPv4' ? 'ip' : 'ip6'} daddr ${ip}`
  const match = `${address} ${protocol.toLowerCase()} dport ${port} ct state new`
  const lines = [`add table inet ${tableName} { flags owner ; }`]
  for (const hook of ['input', 'forward', 'postrouting']) {
    lines.push(`add chain inet ${tableName} ${hook} { type filter hook ${hook} priority -300 ; }`)
  }
  for (const hook of ['prerouting', 'output']) {
    lines.push(
      `add chain inet ${tableName} ${hook} { type filter hook ${hook} priority -150 ; }`,
      `add rule inet ${tableName} ${hook} ${match} meta nftrace set 1`,
    )
  }
  return `${lines.join('\n')}\n`
}

/** The wrapper that ends a program together with this process. */
async function withParent(): Promise<readonly string[]> {
  const wrapper = ['setpriv', '--pdeathsig', 'TERM'] as const
  const [file, ...args] = wrapper
  const tried = await runCommand(file, [...args, 'true']).catch(() => undefined)
  return tried?.code === 0 ? wrapper : []
}

interface Running {
  readonly child: ChildProcess
  readonly stdin: NonNullable<ChildProcess['stdin']>
  readonly stdout: NonNullable<ChildProcess['stdout']>
  /** Rejects when the program ends. */
  readonly exit: Promise<never>
}

function start([file = 'nft', ...args]: readonly string[]): Running {
  const child: ChildProcess = spawn(file, args, {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: programEnvironment(),
  })
  const { stdin, stdout, stderr } = child
  if (!stdin || !stdout || !stderr) {
    child.on('error', () => undefined)
    throw new KernelError('failed', `run ${file}: no file descriptors left; raise their limit`)
  }
  let complaint = ''
  stderr.setEncoding('utf8').on('data', (text: string) => (complaint += text))
  stdin.on('error', () => undefined)
  const exit = new Promise<never>((_, reject) => {
    child.once('error', (cause) => {
      const advice =
        'install nftables; its program nft follows packets through the rules of nftables and iptables'
      reject(new KernelError('not-found', `run nft: ${cause.message}; ${advice}`, { cause }))
    })
    child.once('close', () => {
      const why = complaint.trim().split('\n', 1)[0] ?? ''
      const isDenied = complaint.includes('not permitted')
      const kind = isDenied ? 'denied' : 'failed'
      const advice = isDenied ? '; run it as root, or with CAP_NET_ADMIN' : ''
      reject(new KernelError(kind, `follow packets with nft: ${why}${advice}`))
    })
  })
  exit.catch(() => undefined)
  return { child, stdin, stdout, exit }
}

/** NFNLGRP_NFTRACE, as a bit of a socket's groups. */
const traceGroup = 1 << 8

/**
 * The kernel sends events only to programs that listen already, and a busy machine starts one late.
 * Where /proc does not show sockets, the trace begins after some time without knowing.
 */
async function untilListening(pid: number | undefined): Promise<void> {
  for (let tries = 0; tries < 500; tries++) {
    if (await isListening(pid).catch(() => false)) return
    await delay(20)
  }
}

async function isListening(pid = 0): Promise<boolean> {
  const folder = `/proc/${pid}/fd`
  const descriptors = await readdir(folder)
  const files = await Promise.all(
    descriptors.map((each) => readlink(`${folder}/${each}`).catch(() => '')),
  )
  const sockets = await readFile('/proc/net/netlink', 'utf8')
  return sockets.split('\n').some((line) => {
    const columns = line.trim().split(/ +/)
    const isTracing = (Number.parseInt(columns[3] ?? '', 16) & traceGroup) !== 0
    return columns[1] === '12' && isTracing && files.includes(`socket:[${columns.at(-1)}]`)
  })
}

/** The rules are in force when the listed table shows both, because each line is a transaction. */
async function untilPresent(): Promise<void> {
  for (let tries = 0; tries < 100; tries++) {
    const { stdout } = await runCommand('nft', ['list', 'table', 'inet', tableName])
    if (stdout.split('nftrace').length > 2) return
    await delay(20)
  }
  throw new KernelError(
    'unsupported',
    'follow packets: this nft or kernel cannot make a table that is removed with its owner; this needs nftables 1.0 and Linux 5.12',
  )
}
