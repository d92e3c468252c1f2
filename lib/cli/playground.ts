import type { Command } from 'commander'
import { ConfigError, KernelError } from '../errors.js'
import { processLogger } from './logging.js'
import { checkModes } from './check.js'
import { defaultConfig } from '../config/load.js'
import { stopSignal } from './stop-signal.js'
import { modeLoaders } from '../modes/registry.js'
import { runTour } from '../playground/tour.js'
import type { ModeName } from '../modes/mode.js'

/** The order of history: the original design first. */
const order: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables']

export function addPlaygroundCommand(program: Command): void {
  program
    .command('playground')
    .description('show Services at work on this machine alone, without a cluster; needs root')
    .option('--mode <name>', 'show this mode only')
    .action((flags: { mode?: string }) => play(flags.mode))
}

async function play(only: string | undefined): Promise<void> {
  if (process.getuid?.() !== 0) {
    throw new KernelError(
      'denied',
      'build a playground: network namespaces need root; run it with sudo, or in `unshare -Urn`',
    )
  }
  const say = (line: string) => process.stdout.write(`${line}\n`)
  const modes = await runnableModes(only, say)
  const isFine = await runTour({ modes, print: say }, stopSignal())
  say('')
  say(isFine ? 'Everything answered as it should.' : 'Something did not answer, see above.')
  if (!isFine) process.exitCode = 1
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
