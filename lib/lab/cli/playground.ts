import type { Command } from 'commander'
import { fileURLToPath } from 'node:url'
import { aborted } from '../../async.js'
import { ConfigError } from '../../errors.js'
import { modeOption, wholeNumber } from '../../cli/shared-options.js'
import { stopSignal } from '../../cli/process.js'
import { systemHere } from '../../platform.js'
import { PageServer } from '../../page/server.js'
import { starterGone } from '../playground/user-namespace.js'
import type { ModeName } from '../../config/config.js'
import { modeKeys } from '../../config/keys-modes.js'
import { adviceAbout } from '../../config/kinds.js'
import { allModes } from '../playground/mode-switch.js'

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
  const port = wholeNumber('--port', flags.port, 0, 65_535)
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
  // A simulated cluster needs nothing that only some systems have, so the rest is loaded here.
  const { playHere } = await import('./playground-here.js')
  const hasPlayed = await playHere(wanted, { once: flags.once === true, port, say })
  if (!hasPlayed) return simulate('no mode can run here')
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
  const signal = AbortSignal.any([stopSignal('SIGHUP'), starterGone()])
  const page = await PageServer.listenSite(site, port)
  const scene = proxyMode === undefined ? '' : `/#mode=${proxyMode}`
  say(`Open ${page.url}${scene} to try it yourself; Ctrl-C ends it.`)
  await aborted(signal)
  await page.close()
}

function wantedModes(only: string | undefined): readonly ModeName[] {
  const wanted = allModes.filter((mode) => only === undefined || mode === only)
  if (only === undefined || wanted.length > 0) return wanted
  const advice = adviceAbout(only, modeKeys.mode.kind) ?? `there are ${allModes.join(', ')}`
  throw new ConfigError(`--proxy-mode: there is no mode ${JSON.stringify(only)}; ${advice}`)
}
