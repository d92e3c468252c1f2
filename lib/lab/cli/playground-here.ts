import { processLogger } from '../../cli/logging.js'
import { checkModes, type ModeCheck } from '../../cli/check.js'
import { runCommand } from '../../kernel/command.js'
import { defaultConfig } from '../../config/load.js'
import { stopSignal } from '../../cli/process.js'
import { buildWithCgroup } from '../playground/namespace-test-bed.js'
import { refusalOfCgroup } from '../world/cgroups.js'
import { buildOnLoopback, refusalOfLoopback } from '../playground/loopback-test-bed.js'
import { isLinux } from '../../platform.js'
import { modeLoaders } from '../../modes/registry.js'
import { LivePlayground } from '../playground/live-playground.js'
import { PageServer } from '../../page/server.js'
import { Cluster } from '../playground/cluster.js'
import { runTour } from '../playground/tour.js'
import {
  isInUserNamespace,
  refusalOfUserNamespace,
  rightsOf,
  runInUserNamespace,
  starterGone,
} from '../playground/user-namespace.js'
import type { BuildTestBed } from '../playground/test-bed.js'
import type { ModeName } from '../../config/config.js'

interface PlayOptions {
  /** The tour only, without the page. */
  readonly once: boolean
  readonly port: number
  readonly say: (line: string) => void
}

/** Plays with real packets, until the end; false where none of these modes can run. */
export async function playHere(
  wanted: readonly ModeName[],
  { once, port, say }: PlayOptions,
): Promise<boolean> {
  const hasIp = isLinux() && (await hasProgramIp())
  const rights = hasIp ? await rightsOf() : undefined
  const where = rights?.where
  const refusal = hasIp && where === undefined ? await refusalOfUserNamespace() : undefined
  if (hasIp && where === undefined && refusal === undefined) {
    say('No rights over networks here: the playground runs as root of a user namespace.')
    process.exitCode = await runInUserNamespace(process.argv.slice(2))
    return true
  }
  const surroundings =
    where === undefined
      ? await withoutNamespaces(wanted, obstacleOf(refusal, rights?.refusal), say)
      : { where }
  const missing: string[] = []
  const sayMissing = (line: string) => {
    missing.push(line)
    say(line)
  }
  const modes =
    'modes' in surroundings ? surroundings.modes : await runnableModes(wanted, sayMissing)
  const [first, ...others] = modes
  if (first === undefined) return false
  say(`Playing ${surroundings.where}.`)
  const withSockets = modes.includes('ebpf') ? { buildTestBed: buildWithCgroup } : {}
  const play = {
    ...withSockets,
    ...surroundings,
    modes: [first, ...others],
    missing,
    port,
    say,
  } as const
  // A terminal that is closed sends SIGHUP.
  const signal = AbortSignal.any([stopSignal('SIGHUP'), starterGone()])
  if (!once) await playWithPage(play, signal)
  else if (!(await tour(play, signal))) process.exitCode = 1
  return true
}

function hasProgramIp(): Promise<boolean> {
  return runCommand('ip', ['-V']).then(
    ({ code }) => code === 0,
    () => false,
  )
}

interface LivePageOptions {
  /** Modes that can run here; the page starts in the first. */
  readonly modes: readonly [ModeName, ...ModeName[]]
  /** Why other modes cannot run, a sentence each. */
  readonly missing?: readonly string[]
  /** With which rights the playground runs, for the line under the title. */
  readonly where: string
  /** Network namespaces when absent. */
  readonly buildTestBed?: BuildTestBed
  /** 0 lets the system choose; if it is taken, the next free one is used. */
  readonly port: number
  readonly opened: (page: { readonly url: string; readonly kubeconfig: string }) => void
}

interface Play extends Omit<LivePageOptions, 'opened'> {
  readonly say: (line: string) => void
}

/**
 * Opens the page first, because most users want that. The tour runs in a cluster of its own. After
 * it the address is printed again, as the last line.
 */
async function playWithPage(play: Play, signal: AbortSignal) {
  const { say, ...options } = play
  let isOpen: (lines: string) => void = () => undefined
  const opened = new Promise<string>((resolve) => (isOpen = resolve))
  const page = runLivePage(
    {
      ...options,
      opened: ({ url, kubeconfig }) => {
        const lines = [
          `From another terminal: kubectl --kubeconfig ${kubeconfig} get all`,
          `Open ${url} to try it yourself; Ctrl-C ends it and removes everything.`,
        ].join('\n')
        say(`${lines}\n`)
        isOpen(lines)
      },
    },
    signal,
  )
  const guided = Promise.race([opened, page]).then(async (lines) => {
    if (!signal.aborted) await tour(play, signal)
    if (!signal.aborted && lines !== undefined) say(`\n${lines}`)
  })
  await Promise.all([page, guided])
}

/** Runs a new cluster with its page until the signal, and leaves nothing behind. */
export async function runLivePage(options: LivePageOptions, signal: AbortSignal): Promise<void> {
  const cluster = await Cluster.create('page', options.buildTestBed)
  try {
    const limits = [...cluster.testBed.layout.limits, ...(options.missing ?? [])]
    const playground = new LivePlayground(cluster, { ...options, limits })
    const page = await PageServer.listen(playground, options.port)
    try {
      options.opened({ url: page.url, kubeconfig: cluster.kubeconfig })
      await playground.run(signal)
    } finally {
      await page.close()
    }
  } finally {
    await cluster.close()
  }
}

async function tour({ say, ...options }: Play, signal: AbortSignal): Promise<boolean> {
  const isFine = await runTour({ ...options, print: say }, signal)
  if (signal.aborted) return isFine
  say('')
  say(isFine ? 'Everything answered as it should.' : 'Something did not answer, see above.')
  return isFine
}

/** Why there are no network namespaces, and what the modes of the kernel lack. */
interface Obstacle {
  readonly where: string
  readonly lines: readonly string[]
  readonly missing: string
}

function obstacleOf(refusal: string | undefined, ofRoot: string | undefined): Obstacle {
  const alone = 'userspace mode runs, for this machine alone.'
  const where = 'without any rights, on 127.0.0.0/8 of this machine'
  if (!isLinux()) {
    return { where, lines: [`Only Linux has network namespaces. Here ${alone}`], missing: 'Linux' }
  }
  if (refusal === undefined || ofRoot !== undefined) {
    const why =
      ofRoot === undefined
        ? 'Network namespaces need the program ip, which is missing: install iproute2.'
        : `Root cannot make network namespaces here: ${ofRoot}`
    return {
      where: 'without network namespaces, on 127.0.0.0/8 of this machine',
      lines: [why, `Without them, ${alone}`],
      missing: 'network namespaces',
    }
  }
  return {
    where,
    lines: [
      'Network namespaces need root, and this system refuses user namespaces:',
      `   ${refusal}`,
      `With sudo more modes can run. Without it, ${alone}`,
    ],
    missing: 'rights over a network (NET_ADMIN)',
  }
}

/** Runs programs on 127.0.0.0/8, which needs no rights and no program. */
async function withoutNamespaces(
  wanted: readonly ModeName[],
  { where, lines, missing }: Obstacle,
  say: (line: string) => void,
) {
  for (const line of lines) say(line)
  for (const mode of wanted.filter((mode) => mode !== 'userspace')) {
    say(`Mode ${mode} cannot run here: it needs ${missing}.`)
  }
  const refusal = await refusalOfLoopback()
  if (refusal !== undefined) say(`Mode userspace cannot run here: ${refusal}.`)
  return {
    where,
    modes: wanted.filter((mode) => mode === 'userspace' && refusal === undefined),
    buildTestBed: buildOnLoopback,
  }
}

/** The modes that this kernel can run. For each of the others it prints what is missing. */
async function runnableModes(
  wanted: readonly ModeName[],
  say: (line: string) => void,
): Promise<readonly ModeName[]> {
  const loaders = Object.fromEntries(wanted.map((mode) => [mode, modeLoaders[mode]]))
  const checks = isInUserNamespace()
    ? await checkInside(wanted)
    : await checkModes(processLogger(defaultConfig().logging), loaders)
  for (const { mode, runs, findings } of checks) {
    const missing = findings.find(({ ok, required }) => required && !ok)
    if (!runs && missing)
      say(`Mode ${mode} cannot run here: ${missing.what}: ${missing.seen}. ${missing.fix}`)
  }
  const running = wanted.filter((mode) => checks.some((check) => check.mode === mode && check.runs))
  const refusal = running.includes('ebpf') ? refusalOfCgroup() : undefined
  if (refusal === undefined) return running
  say(`Mode ebpf cannot run here: its pods need a cgroup of their own: ${refusal}.`)
  return running.filter((mode) => mode !== 'ebpf')
}

/**
 * In a user namespace a process has rights only over its own network namespaces, so the check runs
 * in one.
 */
async function checkInside(wanted: readonly ModeName[]): Promise<readonly ModeCheck[]> {
  const [, command = ''] = process.argv
  const args = ['--net', process.execPath, command, 'check', '--json']
  const { stdout } = await runCommand('unshare', args)
  const checks = JSON.parse(stdout) as readonly ModeCheck[]
  return checks.filter(({ mode }) => wanted.some((name) => name === mode))
}
