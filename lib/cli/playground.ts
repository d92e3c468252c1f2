import type { Command } from 'commander'
import { ConfigError, KernelError } from '../errors.js'
import { processLogger } from './logging.js'
import { checkModes, type ModeCheck } from './check.js'
import { runCommand } from '../kernel/command.js'
import { defaultConfig } from '../config/load.js'
import { stopSignal } from './stop-signal.js'
import { modeLoaders } from '../modes/registry.js'
import { runLivePage } from '../playground/live-page.js'
import { runTour } from '../playground/tour.js'
import {
  isInUserNamespace,
  refusalOfUserNamespace,
  rightsOf,
  runInUserNamespace,
  starterGone,
} from '../playground/own-rights.js'
import type { ModeName } from '../modes/mode.js'

/** The order of history: the original design first. */
const order: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables']

export function addPlaygroundCommand(program: Command): void {
  program
    .command('playground')
    .description(
      'show Services at work on this machine alone, without a cluster, with or without root',
    )
    .option('--mode <name>', 'show this mode only')
    .option('--once', 'the tour only, without the page; exit code 0 when everything answered')
    .option('--port <number>', 'of the page on 127.0.0.1; the next one where it is taken', '8383')
    .action(play)
}

interface PlaygroundFlags {
  readonly mode?: string
  readonly once?: boolean
  readonly port: string
}

async function play(flags: PlaygroundFlags): Promise<void> {
  const port = Number(flags.port)
  if (!/^\d+$/.test(flags.port) || port > 65_535) {
    throw new ConfigError(`--port: ${JSON.stringify(flags.port)} is no port; give 0 to 65535`)
  }
  const say = (line: string) => process.stdout.write(`${line}\n`)
  const where = rightsOf()
  if (where === undefined) return playInside(say)
  say(`Playing ${where}.`)
  const modes = await runnableModes(flags.mode, say)
  const signal = AbortSignal.any([stopSignal(), starterGone()])
  const [first, ...others] = modes
  if (flags.once === true || first === undefined) {
    const isFine = await tour(modes, say, signal)
    if (!isFine) process.exitCode = 1
    return
  }
  await playWithPage({ modes: [first, ...others], where, port, say }, signal)
}

interface WithPage {
  readonly modes: readonly [ModeName, ...ModeName[]]
  readonly where: string
  readonly port: number
  readonly say: (line: string) => void
}

/** The page comes first, as that is what most are here for; the tour runs in a scene of its own. */
async function playWithPage({ modes, where, port, say }: WithPage, signal: AbortSignal) {
  let isOpen: () => void = () => undefined
  const opened = new Promise<void>((resolve) => (isOpen = resolve))
  const page = runLivePage(
    {
      modes,
      where,
      port,
      opened: ({ url, kubeconfig }) => {
        say(`Open ${url} to try it yourself; Ctrl-C ends it and removes everything.`)
        say(`   from another terminal: kubectl --kubeconfig ${kubeconfig} get all`)
        say('')
        isOpen()
      },
    },
    signal,
  )
  const guided = Promise.race([opened, page]).then(async () => {
    if (!signal.aborted) await tour(modes, say, signal)
  })
  await Promise.all([page, guided])
}

async function tour(
  modes: readonly ModeName[],
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<boolean> {
  const isFine = await runTour({ modes, print: say }, signal)
  if (signal.aborted) return isFine
  say('')
  say(isFine ? 'Everything answered as it should.' : 'Something did not answer, see above.')
  return isFine
}

/** Without root there is a user namespace to be root of, where the system lets people have one. */
async function playInside(say: (line: string) => void): Promise<void> {
  const refusal = await refusalOfUserNamespace()
  // Where even that is refused, userspace mode on addresses of 127.0.0.0/8 would be what is left
  // (`--userspace-portals=addresses`); it needs backends that share this host's network.
  if (refusal !== undefined) {
    throw new KernelError(
      'denied',
      'build a playground: network namespaces need root, and this system refuses user namespaces; run it with sudo',
      { detail: refusal },
    )
  }
  say('Not root: going on as root of a user namespace.')
  process.exitCode = await runInUserNamespace(process.argv.slice(2))
}

/** Modes this kernel can run; the others are named with what they miss. */
async function runnableModes(
  only: string | undefined,
  say: (line: string) => void,
): Promise<readonly ModeName[]> {
  const wanted = order.filter((mode) => modeLoaders[mode] && (only === undefined || mode === only))
  if (wanted.length === 0) {
    const names = order.join(', ')
    throw new ConfigError(`--mode: there is no mode ${JSON.stringify(only)}; there are ${names}`)
  }
  const loaders = Object.fromEntries(wanted.map((mode) => [mode, modeLoaders[mode]]))
  const checks = isInUserNamespace()
    ? await checkInside(wanted)
    : await checkModes(processLogger(defaultConfig().logging), loaders)
  for (const { mode, runs, findings } of checks) {
    const missing = findings.find(({ ok, required }) => required && !ok)
    if (!runs && missing)
      say(`Mode ${mode} cannot run here: ${missing.what}: ${missing.seen}. ${missing.fix}`)
  }
  return wanted.filter((mode) => checks.some((check) => check.mode === mode && check.runs))
}

/** In a user namespace only networks of its own obey: the kernel is asked from inside of one. */
async function checkInside(wanted: readonly ModeName[]): Promise<readonly ModeCheck[]> {
  const [, command = ''] = process.argv
  const args = ['--net', process.execPath, command, 'check', '--json']
  const { stdout } = await runCommand('unshare', args)
  const checks = JSON.parse(stdout) as readonly ModeCheck[]
  return checks.filter(({ mode }) => wanted.some((name) => name === mode))
}
