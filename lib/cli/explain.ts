import { Option, type Command } from 'commander'
import { ConfigError } from '../errors.js'
import { explainedModes, explainPacket } from '../explain/explain.js'
import { explanationText, verdictOf } from '../explain/text.js'
import { modeSettings } from '../config/mode-settings.js'
import { readConfiguration } from './configuration.js'
import { readManifestStates } from './manifest-states.js'
import { understand } from '../explain/question.js'
import type { Protocol } from '../state/names.js'

interface ExplainFlags {
  readonly manifests: string
  readonly mode: string
  readonly from: string
  readonly protocol?: string
  readonly node: string
  readonly clusterCidr: string
  readonly addresses?: string
  readonly json?: boolean
}

/** Adds `kube-proxy explain`: the way of a connection through the rules of a mode, in words. */
export function addExplainCommand(program: Command): void {
  program
    .command('explain')
    .description('tell the way of a connection through the rules of a mode; needs no root')
    .argument('<target>', 'NAMESPACE/NAME[:PORT], NAME[:PORT], or IP:PORT')
    .requiredOption('--manifests <path>', 'file or folder of YAML or JSON')
    .addOption(new Option('--mode <mode>', 'the mode').choices(explainedModes).default('iptables'))
    .option('--from <sender>', 'pod, node, outside, or an address', 'pod')
    .addOption(new Option('--protocol <name>', 'where a port has several').choices(protocols))
    .option('--node <name>', 'name of the node that is pretended', 'node-1')
    .option('--cluster-cidr <cidr>', 'CIDR of the pods', '10.244.0.0/16')
    .option('--addresses <list>', "addresses of the node; without it, this machine's")
    .option('--json', 'as JSON')
    .action(explain)
}

const protocols: readonly Protocol[] = ['TCP', 'UDP', 'SCTP']
const families = ['IPv4', 'IPv6'] as const

async function explain(target: string, flags: ExplainFlags): Promise<void> {
  const mode = explainedModes.find((name) => name === flags.mode) ?? 'iptables'
  const { config } = (await readConfiguration([['cluster-cidr', flags.clusterCidr]])).loaded
  const { states, warnings } = await readManifestStates({
    mode,
    manifests: flags.manifests,
    families,
    nodeName: flags.node,
    config,
    addresses: flags.addresses?.split(',') ?? [],
  })
  for (const warning of warnings) process.stderr.write(`${warning}\n`)
  const protocol = protocols.find((name) => name === flags.protocol)
  const question = understand({ target, from: flags.from, protocol }, states)
  if (typeof question === 'string') throw new ConfigError(question)
  const settings = modeSettings(config, mode, families)
  const ways = explainPacket(mode, question.state, settings, question.packet)
  const { packet, sender, service } = question
  const shown = ways.map((way) => ({ ...way, verdict: verdictOf(way) }))
  process.stdout.write(
    flags.json === true
      ? `${JSON.stringify({ mode, sender, service: service?.portName, packet, ways: shown }, undefined, 2)}\n`
      : explanationText(question, mode, ways),
  )
}
