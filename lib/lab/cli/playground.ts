import type { Command } from 'commander'
import { fileURLToPath } from 'node:url'
import { aborted } from '../../async.js'
import { ConfigError } from '../../errors.js'
import { processLogger } from '../../cli/logging.js'
import { modeOption } from '../../cli/shared-options.js'
import { checkModes, type ModeCheck } from '../../cli/check.js'
import { runCommand } from '../../kernel/command.js'
import { defaultConfig } from '../../config/load.js'
import { stopSignal } from '../../cli/process.js'
import { buildWithCgroup } from '../playground/namespace-test-bed.js'
import { refusalOfCgroup } from '../world/cgroups.js'
import { buildOnLoopback, refusalOfLoopback } from '../playground/loopback-test-bed.js'
import { isLinux, systemHere } from '../../platform.js'
import { modeLoaders } from '../../modes/registry.js'
import { PageServer } from '../../page/server.js'
import { runLivePage } from '../playground/live-page.js'
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

/** The modes in historical order. */
const order: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf']

export function addPlaygroundCommand(program: Command): void {
  program
    .command('playground')
    .description(
      'show Services at work on this machine alone, without a cluster, with or without root',
    )
    .addOption(modeOption('show this mode only'))
    .option('--once', 'the tour only, without the page; exit code 0 when everything answered')
    .option('--simulated', 'simulate the cluster in the browser, as where no mode can run')
    .option(
      '--port <number>',
      'port of the page on 127.0.0.1; the next free one if it is taken',
      '8383',
    )
    .action(play)
}

interface PlaygroundFlags {
  readonly proxyMode?: string
  readonly once?: boolean
  readonly simulated?: boolean
  readonly port: string
}

async function play(flags: PlaygroundFlags): Promise<void> {
  const port = Number(flags.port)
  if (!/^\d+$/.test(flags.port) || port > 65_535) {
    throw new ConfigError(`--port: ${JSON.stringify(flags.port)} is no port; give 0 to 65535`)
  }
  const wanted = wantedModes(flags.proxyMode)
  const say = (line: string) => process.stdout.write(`${line}\n`)
  if (flags.simulated === true && flags.once === true) {
    throw new ConfigError('--once: the tour sends real packets; leave out --once or --simulated')
  }
  const simulate = (why: string) => playSimulated(why, { ...flags, port, say })
  if (flags.simulated === true) return simulate('--simulated asks for it')
  if (systemHere() === 'other') {
    return simulate(`modes run on Linux and Windows only, and this is ${process.platform}`)
  }
  const hasIp = isLinux() && (await hasProgramIp())
  const where = hasIp ? await rightsOf() : undefined
  const refusal = hasIp && where === undefined ? await refusalOfUserNamespace() : undefined
  if (hasIp && where === undefined && refusal === undefined) return playInside(say)
  const surroundings =
    where === undefined ? await withoutNamespaces(wanted, obstacleOf(refusal), say) : { where }
  const missing: string[] = []
  const sayMissing = (line: string) => {
    missing.push(line)
    say(line)
  }
  const modes =
    'modes' in surroundings ? surroundings.modes : await runnableModes(wanted, sayMissing)
  const [first, ...others] = modes
  if (first === undefined) return simulate('no mode can run here')
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
  const signal = AbortSignal.any([stopSignal(), starterGone()])
  if (flags.once !== true) return playWithPage(play, signal)
  if (!(await tour(play, signal))) process.exitCode = 1
}

/** The folder that `npm run site` builds; the package has it, too. */
const site = fileURLToPath(new URL('../../../site', import.meta.url))

interface SimulatedPlay extends Pick<PlaygroundFlags, 'once' | 'proxyMode'> {
  readonly port: number
  readonly say: (line: string) => void
}

/** Serves the site, whose cluster each browser simulates for itself. */
async function playSimulated(why: string, { once, proxyMode, port, say }: SimulatedPlay) {
  if (once === true) {
    say(`No mode is left to show: ${why}. Without --once a page shows a simulated cluster.`)
    process.exitCode = 1
    return
  }
  say(`The cluster is simulated in the browser: ${why}. No packet is sent.`)
  const signal = AbortSignal.any([stopSignal(), starterGone()])
  const page = await PageServer.listenSite(site, port)
  const scene = proxyMode === undefined ? '' : `/#mode=${proxyMode}`
  say(`Open ${page.url}${scene} to try it yourself; Ctrl-C ends it.`)
  await aborted(signal)
  await page.close()
}

function hasProgramIp(): Promise<boolean> {
  return runCommand('ip', ['-V']).then(
    ({ code }) => code === 0,
    () => false,
  )
}

interface Play {
  readonly modes: readonly [ModeName, ...ModeName[]]
  /** Why other modes cannot run here. */
  readonly missing: readonly string[]
  readonly where: string
  /** Network namespaces when absent. */
  readonly buildTestBed?: BuildTestBed
  readonly port: number
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

async function tour({ say, ...options }: Play, signal: AbortSignal): Promise<boolean> {
  const isFine = await runTour({ ...options, print: say }, signal)
  if (signal.aborted) return isFine
  say('')
  say(isFine ? 'Everything answered as it should.' : 'Something did not answer, see above.')
  return isFine
}

/** Runs the playground as root of a user namespace, if the system allows that. */
async function playInside(say: (line: string) => void): Promise<void> {
  say('No rights over networks here: the playground runs as root of a user namespace.')
  process.exitCode = await runInUserNamespace(process.argv.slice(2))
}

/** Why there are no network namespaces, and what the modes of the kernel lack. */
interface Obstacle {
  readonly where: string
  readonly lines: readonly string[]
  readonly missing: string
}

function obstacleOf(refusal: string | undefined): Obstacle {
  const alone = 'userspace mode runs, for this machine alone.'
  const where = 'without any rights, on 127.0.0.0/8 of this machine'
  if (!isLinux()) {
    return { where, lines: [`Only Linux has network namespaces. Here ${alone}`], missing: 'Linux' }
  }
  if (refusal === undefined) {
    return {
      where: 'without network namespaces, on 127.0.0.0/8 of this machine',
      lines: [
        'Network namespaces need the program ip, which is missing: install iproute2.',
        `Without it, ${alone}`,
      ],
      missing: 'network namespaces',
    }
  }
  return {
    where,
    lines: [
      'Network namespaces need root, and this system refuses user namespaces:',
      ...refusal.split('\n').map((line) => `   ${line}`),
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

function wantedModes(only: string | undefined): readonly ModeName[] {
  const wanted = order.filter((mode) => only === undefined || mode === only)
  if (wanted.length > 0) return wanted
  const names = order.join(', ')
  throw new ConfigError(
    `--proxy-mode: there is no mode ${JSON.stringify(only)}; there are ${names}`,
  )
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
