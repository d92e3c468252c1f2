import type { Command } from 'commander'
import { ConfigError, KernelError } from '../errors.js'
import { processLogger } from './logging.js'
import { checkModes } from './check.js'
import { defaultConfig } from '../config/load.js'
import { stopSignal } from './stop-signal.js'
import { modeLoaders } from '../modes/registry.js'
import { runLivePage } from '../playground/live-page.js'
import { runTour } from '../playground/tour.js'
import type { ModeName } from '../modes/mode.js'

/** The order of history: the original design first. */
const order: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables']

export function addPlaygroundCommand(program: Command): void {
  program
    .command('playground')
    .description('show Services at work on this machine alone, without a cluster; needs root')
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
  if (process.getuid?.() !== 0) {
    throw new KernelError(
      'denied',
      'build a playground: network namespaces need root; run it with sudo, or in `unshare -Urn`',
    )
  }
  const say = (line: string) => process.stdout.write(`${line}\n`)
  const modes = await runnableModes(flags.mode, say)
  const signal = stopSignal()
  const isFine = await runTour({ modes, print: say }, signal)
  say('')
  say(isFine ? 'Everything answered as it should.' : 'Something did not answer, see above.')
  if (!isFine) process.exitCode = 1
  const [first, ...others] = modes
  if (flags.once === true || first === undefined || signal.aborted) return
  const opened = ({ url, kubeconfig }: { url: string; kubeconfig: string }) => {
    say(`Open ${url} to try it yourself; Ctrl-C ends it and removes everything.`)
    say(`   from another terminal: kubectl --kubeconfig ${kubeconfig} get all`)
  }
  await runLivePage({ modes: [first, ...others], port, opened }, signal)
  process.exitCode = 0
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
  const checks = await checkModes(processLogger(defaultConfig().logging), loaders)
  for (const { mode, runs, findings } of checks) {
    const missing = findings.find(({ ok, required }) => required && !ok)
    if (!runs && missing)
      say(`Mode ${mode} cannot run here: ${missing.what}: ${missing.seen}. ${missing.fix}`)
  }
  return wanted.filter((mode) => checks.some((check) => check.mode === mode && check.runs))
}
