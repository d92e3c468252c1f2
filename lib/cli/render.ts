import { Option, type Command } from 'commander'
import { ConfigError } from '../errors.js'
import {
  addOutputOptions,
  modeOption,
  nodeNameOption,
  printed,
  type OutputFlags,
} from './shared-options.js'
import { readConfiguration } from './configuration.js'
import { readManifestStates, type ManifestStatesRequest } from './node-states.js'
import { modeMeant } from '../modes/systems.js'
import { modeNames } from '../modes/registry.js'
import type { ModeName } from '../config/config.js'
import { rulesText } from '../modes/planners.js'
import { printable } from '../state/names.js'
import type { IpFamily } from '../state/ip.js'

interface RenderFlags extends OutputFlags {
  readonly proxyMode?: ModeName
  readonly manifests?: string
  readonly config?: string
  readonly family: string
  readonly hostnameOverride: string
  readonly clusterCidr?: string
  readonly addresses?: string
}

/** Adds `kube-proxy render`: manifests in, the text of a mode's plan out. Needs no rights. */
export function addRenderCommand(program: Command): void {
  const command = program
    .command('render')
    .description('print what a mode would put on a node for these manifests; needs no root')
    .addOption(modeOption("the mode; without it, the configuration's").choices(modeNames))
    .option('--manifests <path>', "file or folder of YAML or JSON; without it, the configuration's")
    .option('--config <file>', 'configuration of the node that is pretended')
    .addOption(
      new Option('--family <family>', 'the IP family')
        .choices(['ipv4', 'ipv6', 'both'])
        .default('ipv4'),
    )
    .addOption(nodeNameOption('name of the node that is pretended').default('node-1'))
    .option('--cluster-cidr <cidr>', `CIDR of the pods; without --config ${usualPodCidr}`)
    .option('--addresses <list>', "addresses of the node; without it, this machine's")
  addOutputOptions(command).action(async (flags: RenderFlags) => {
    const { request, warnings: first } = await requestOf(flags)
    const { text, families, warnings } = await render(request)
    for (const warning of [...first, ...warnings]) process.stderr.write(`${printable(warning)}\n`)
    process.stdout.write(printed(flags, { data: { mode: request.mode, families }, text }))
  })
}

/** Reads the configuration as the daemon would. Throws ConfigError. */
async function requestOf(
  flags: RenderFlags,
): Promise<{ readonly request: ManifestStatesRequest; readonly warnings: readonly string[] }> {
  const given: [string, string][] = []
  if (flags.config !== undefined) given.push(['config', flags.config])
  const podCidr = flags.clusterCidr ?? (flags.config === undefined ? usualPodCidr : undefined)
  if (podCidr !== undefined) given.push(['cluster-cidr', podCidr])
  const { loaded } = await readConfiguration(given)
  const mode = modeMeant(flags.proxyMode ?? loaded.config.mode)
  if (mode === 'auto')
    throw new ConfigError(`--proxy-mode: say which of ${modeNames.join(', ')} to render`)
  const manifests = flags.manifests ?? loaded.config.manifests
  if (manifests === '')
    throw new ConfigError('--manifests: say which file or folder has the objects')
  const request = {
    mode,
    manifests,
    families: families[flags.family] ?? ['IPv4'],
    nodeName: flags.hostnameOverride,
    config: loaded.config,
    addresses: flags.addresses?.split(',') ?? [],
  }
  return { request, warnings: loaded.warnings }
}

const usualPodCidr = '10.244.0.0/16'

const families: Readonly<Record<string, readonly IpFamily[]>> = {
  ipv4: ['IPv4'],
  ipv6: ['IPv6'],
  both: ['IPv4', 'IPv6'],
}

/**
 * Reads the manifests, builds the state and renders the plan. Throws ConfigError without manifests.
 */
export async function render(request: ManifestStatesRequest) {
  const { mode, config } = request
  const { states, warnings } = await readManifestStates(request)
  const families = states.map((state) => ({
    family: state.family,
    rules: rulesText(mode, config, [state]),
  }))
  return { text: rulesText(mode, config, states), families, warnings }
}
