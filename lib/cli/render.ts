import { Option, type Command } from 'commander'
import { ConfigError } from '../errors.js'
import type { Config } from '../config/config.js'
import { modeSettings } from '../config/mode-settings.js'
import { trackerSettings } from '../config/tracker-settings.js'
import { readConfiguration } from './configuration.js'
import { modeLoaders } from '../modes/registry.js'
import { nodeAddresses } from '../sources/node-addresses.js'
import { ManifestFolder } from '../sources/manifest-folder.js'
import { TrackerSink } from '../sources/tracker-sink.js'
import type { ModeName, Planner } from '../modes/mode.js'
import type { IpFamily } from '../state/ip.js'
import { Tracker } from '../state/tracker.js'

export interface RenderRequest {
  readonly mode: ModeName
  readonly manifests: string
  readonly families: readonly IpFamily[]
  readonly nodeName: string
  readonly config: Config
  /** Of the node that is pretended; empty: those of this machine. */
  readonly addresses: readonly string[]
}

interface RenderFlags {
  readonly mode?: string
  readonly manifests: string
  readonly config?: string
  readonly family: string
  readonly node: string
  readonly clusterCidr?: string
  readonly addresses?: string
}

/** Adds `kube-proxy render`: manifests in, the text of a mode's plan out. Needs no rights. */
export function addRenderCommand(program: Command): void {
  program
    .command('render')
    .description('print what a mode would put on a node for these manifests; needs no root')
    .addOption(
      new Option('--mode <mode>', "the mode; without it, the configuration's").choices(
        Object.keys(modeLoaders),
      ),
    )
    .requiredOption('--manifests <path>', 'file or folder of YAML or JSON')
    .option('--config <file>', 'configuration of the node that is pretended')
    .addOption(
      new Option('--family <family>', 'the IP family')
        .choices(['ipv4', 'ipv6', 'both'])
        .default('ipv4'),
    )
    .option('--node <name>', 'name of the node that is pretended', 'node-1')
    .option('--cluster-cidr <cidr>', `CIDR of the pods; without --config ${usualPodCidr}`)
    .option('--addresses <list>', "addresses of the node; without it, this machine's")
    .action(async (flags: RenderFlags) => {
      const { request, warnings: first } = await requestOf(flags)
      const { text, warnings } = await render(request)
      for (const warning of [...first, ...warnings]) process.stderr.write(`${warning}\n`)
      process.stdout.write(text)
    })
}

/** Reads the configuration as the daemon would. Throws ConfigError. */
async function requestOf(
  flags: RenderFlags,
): Promise<{ readonly request: RenderRequest; readonly warnings: readonly string[] }> {
  const given: [string, string][] = []
  if (flags.config !== undefined) given.push(['config', flags.config])
  const podCidr = flags.clusterCidr ?? (flags.config === undefined ? usualPodCidr : undefined)
  if (podCidr !== undefined) given.push(['cluster-cidr', podCidr])
  const { loaded } = await readConfiguration(given)
  const wanted = flags.mode ?? (loaded.config.mode === '' ? 'iptables' : loaded.config.mode)
  const mode = modeNames.find((name) => name === wanted)
  if (!mode) throw new ConfigError(`--mode: say which of ${modeNames.join(', ')} to render`)
  const request = {
    mode,
    manifests: flags.manifests,
    families: families[flags.family] ?? ['IPv4'],
    nodeName: flags.node,
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

const modeNames: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables']

/** The whole way through the house, but for the last step. Throws ConfigError without manifests. */
export async function render(
  request: RenderRequest,
): Promise<{ readonly text: string; readonly warnings: readonly string[] }> {
  const { mode, families, nodeName, config } = request
  const load = modeLoaders[mode]
  if (!load) throw new ConfigError(`--mode: ${mode} is not built in`)
  const warnings: string[] = []
  const tracker = new Tracker(trackerSettings(config, mode, { nodeName, families }))
  tracker.setLocalAddresses(request.addresses.length > 0 ? request.addresses : nodeAddresses())
  const sink = new TrackerSink(tracker, nodeName, {
    changed: () => undefined,
    nodeChanged: () => undefined,
    malformed: (kind, { namespace, name }, reason) => {
      warnings.push(`${kind} ${namespace}/${name} is skipped: ${reason}`)
    },
    warned: (kind, { namespace, name }, warning) => {
      warnings.push(`${kind} ${namespace}/${name}: ${warning}`)
    },
    failed: (message) => warnings.push(message),
  })
  await new ManifestFolder({ path: request.manifests }).load(sink)
  if (!sink.isComplete) {
    throw new ConfigError(['--manifests: nothing can be read there', ...warnings].join('\n'))
  }
  const planner: Planner = (await load()).planner(modeSettings(config, mode, families))
  const texts = tracker.take().states.map((state) => {
    const title = families.length > 1 ? `# ${state.family}\n` : ''
    return title + planner.render(planner.plan(state))
  })
  return { text: texts.join('\n'), warnings }
}
