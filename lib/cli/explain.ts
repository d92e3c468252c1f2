import { setTimeout as delay } from 'node:timers/promises'
import { Option, type Command } from 'commander'
import { annotate, LiveCheck } from '../inspect/explain/live.js'
import { ConfigError, KernelError, messageOf } from '../errors.js'
import { addOutputOptions, isData, printed, type OutputFlags } from './shared-options.js'
import { answerOf, explainQuestion, judged } from '../inspect/explain/answer.js'
import { bridgesHere, onBridgesHere } from '../inspect/explain/bridges.js'
import { explainPacket } from '../inspect/explain/explain.js'
import { lackingTexts } from '../inspect/explain/option-lines.js'
import { explanationText, kernelDiffers, type Explanation } from '../inspect/explain/text.js'
import { modeMeant } from '../modes/systems.js'
import { modeLoaders } from '../modes/registry.js'
import { readConfiguration } from './configuration.js'
import { readManifestStates } from './node-states.js'
import {
  addNodeOptions,
  secondLookAfterMs,
  seeNode,
  type NodeFlags,
  type SeenNode,
} from './seen-node.js'
import { fullTable, notForwarding } from '../kernel/obstacles.js'
import { otherRules } from '../inspect/obstacles.js'
import { understand, type Question } from '../inspect/explain/question.js'
import { ipFamilies } from '../state/ip.js'
import { lastingDifferences } from '../inspect/differences.js'
import { isProxyMode } from '../config/config.js'
import type { Difference } from '../modes/difference.js'
import type { ModeDefinition } from '../modes/mode.js'
import { printable, protocols } from '../state/names.js'

interface ExplainFlags extends NodeFlags, ExplainQuestion {
  readonly addresses?: string
  readonly live?: boolean
}

const usage = `
Where the objects come from:
  --manifests alone          a pretended node; this machine is not asked, and root is not needed
  --kubeconfig, --config …   the cluster as this node's proxy sees it, hop by hop against the kernel
  none of them               the same, with the configuration of the proxy that runs here`

/** Adds `kube-proxy explain`: the way of a connection through the rules of a mode, in words. */
export function addExplainCommand(program: Command): void {
  const command = addNodeOptions(
    program
      .command('explain')
      .description('tell the way of a connection through the rules of a mode, hop by hop')
      .argument('<target>', 'NAMESPACE/NAME[:PORT], NAME[:PORT], or IP:PORT'),
  )
    .option('--from <sender>', 'pod, node, outside, or an address', 'pod')
    .addOption(
      new Option('--protocol <name>', 'the protocol, if a port has several').choices(protocols),
    )
    .option('--addresses <list>', 'addresses of a pretended node')
    .option('--live', 'ask the kernel of this node even with --manifests alone')
    .option('--no-live', 'do not ask the kernel')
  addOutputOptions(command).addHelpText('after', usage).action(explain)
}

async function explain(target: string, flags: ExplainFlags): Promise<void> {
  const isPretended =
    flags.manifests !== undefined && flags.config === undefined && flags.live !== true
  const see = () => (isPretended ? pretendNode(flags, flags.manifests) : seeNode(flags))
  const asksKernel = !isPretended && flags.live !== false
  let answer = await answerTo(target, flags, await see(), asksKernel)
  if (kernelDiffers(answer.explanation)) {
    await delay(secondLookAfterMs)
    answer = await answerTo(target, flags, await see(), asksKernel, answer.differences)
  }
  print(answer, flags)
}

/** The question, and the format of the answer. */
interface ExplainQuestion extends OutputFlags {
  readonly from: string
  readonly protocol?: string
}

interface Answer {
  readonly seen: SeenNode
  readonly question: Question
  readonly explanation: Explanation
  /** Those of the whole node; empty if the kernel was not asked. */
  readonly differences: readonly Difference[]
}

/** Explains a plan without asking the kernel. */
export async function explainSeen(
  target: string,
  flags: ExplainQuestion,
  seen: SeenNode,
): Promise<void> {
  print(await answerTo(target, flags, seen, false), flags)
}

async function answerTo(
  target: string,
  flags: ExplainQuestion,
  seen: SeenNode,
  asksKernel: boolean,
  before?: readonly Difference[],
): Promise<Answer> {
  const protocol = protocols.find((name) => name === flags.protocol)
  const question = understand({ target, from: flags.from, protocol }, seen.states)
  if (typeof question === 'string') {
    warn(question, seen, flags)
    throw new ConfigError(question)
  }
  return { seen, question, ...(await explained(question, seen, asksKernel, before)) }
}

function print({ seen, question, explanation }: Answer, flags: OutputFlags): void {
  warn(question, seen, flags)
  process.stdout.write(
    printed(flags, {
      data: forPrograms(question, explanation),
      text: explanationText(question, explanation),
    }),
  )
}

/** Prints the warnings about the Service, without those that the text says anyway. */
function warn(question: Question | string, seen: SeenNode, flags: OutputFlags): void {
  const service = typeof question === 'string' ? undefined : question.service
  const { namespace = '', name = '' } = service?.name ?? {}
  const warnings = service ? seen.warningsFor(namespace, name) : seen.warnings
  const said = service && !isData(flags) ? lackingTexts(service) : []
  for (const warning of warnings) {
    if (!said.some((text) => warning.includes(text)))
      process.stderr.write(`${printable(warning)}\n`)
  }
}

async function explained(
  question: Question,
  seen: SeenNode,
  asksKernel: boolean,
  before: readonly Difference[] | undefined,
): Promise<Pick<Answer, 'explanation' | 'differences'>> {
  const { mode, config: wanted } = seen
  const { state, packet } = question
  const definition: ModeDefinition | undefined = asksKernel ? await modeLoaders[mode]() : undefined
  const config = (await definition?.settle?.(wanted, state.family)) ?? wanted
  const asked = explainQuestion(question, { ...seen, config })
  if (!definition) return { explanation: asked, differences: [] }
  const bridges = bridgesHere()
  const planned = {
    ...asked,
    ways: await onBridgesHere(asked.ways, bridges),
    obstacles: await obstaclesOf(question, asked),
  }
  try {
    const differences = await definition.differences(state, config)
    const check = new LiveCheck(before ? lastingDifferences(before, differences) : differences)
    const lacks = check.lacks.bind(check)
    const found = explainPacket(mode, state, config, packet, lacks)
    const live = await onBridgesHere(found, bridges)
    return { explanation: { ...planned, ways: annotate(planned.ways, check), live }, differences }
  } catch (error) {
    // This is no failure, because the plan can be explained without the kernel.
    const isDenied = error instanceof KernelError && error.kind === 'denied'
    const notAsked = `${messageOf(error)}${isDenied ? '; run it as root' : ''}`
    return { explanation: { ...planned, notAsked }, differences: [] }
  }
}

/** What stops the connection on this node outside the rules of the mode. */
async function obstaclesOf({ packet }: Question, { mode, ways }: Explanation) {
  // What is for this node, as for the sockets of a proxy, needs no forwarding.
  const isPassedOn =
    packet.inInterface !== undefined &&
    !isProxyMode(mode) &&
    ways.some(({ end, packet: { isDnated } }) => end === 'sent' && isDnated)
  return [
    ...fullTable(),
    ...(isPassedOn ? notForwarding(packet.family) : []),
    ...(await otherRules(mode, packet.family)),
  ]
}

function forPrograms(question: Question, explanation: Explanation) {
  const { live, notAsked, obstacles = [] } = explanation
  return {
    ...answerOf(question, explanation),
    ...(live ? { live: judged(live) } : {}),
    ...(obstacles.length > 0 ? { obstacles } : {}),
    ...(notAsked === '' ? {} : { notAsked }),
  }
}

/** A pretended node, for manifests without a cluster. */
async function pretendNode(flags: ExplainFlags, manifests = ''): Promise<SeenNode> {
  const mode = modeMeant(flags.proxyMode ?? '')
  const cidr = flags.clusterCidr ?? '10.244.0.0/16'
  const { config } = (await readConfiguration([['cluster-cidr', cidr]])).loaded
  const nodeName = flags.hostnameOverride ?? 'node-1'
  const addresses = flags.addresses?.split(',') ?? []
  const request = { mode, manifests, families: ipFamilies, nodeName, config, addresses }
  return { ...(await readManifestStates(request)), config, mode, nodeName }
}
