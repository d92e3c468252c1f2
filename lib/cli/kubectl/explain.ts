import { Option, type Command } from 'commander'
import {
  addNamedOptions,
  clientOf,
  namespaceOf,
  outputOf,
  targetOf,
  type NamedFlags,
} from './names.js'
import { ConfigError } from '../../errors.js'
import { explainSeen } from '../explain.js'
import { protocols, printable } from '../../state/names.js'
import { findProxies, onNode } from './proxies.js'
import { Kubectl } from './kubectl.js'
import { seeRemoteNode } from './remote-node.js'
import { understand } from '../../inspect/explain/question.js'

interface ExplainFlags extends NamedFlags {
  readonly from: string
  readonly protocol?: string
}

/** Adds `kubectl svcproxy explain`: the way of a connection on a node, as its proxy plans it. */
export function addExplainCommand(program: Command): void {
  const command = program
    .command('explain')
    .description('tell the way of a connection through the rules of a node, hop by hop')
    .argument('<target>', 'svc/NAME[:PORT], NAME[:PORT], NAMESPACE/NAME[:PORT] or IP:PORT')
    .option('--from <sender>', 'pod/NAME, pod, node, outside, or an address', 'pod')
    .addOption(
      new Option('--protocol <name>', 'the protocol, if a port has several').choices(protocols),
    )
  addNamedOptions(command, 'one').action(explain)
}

async function explain(text: string, flags: ExplainFlags): Promise<void> {
  if (flags.output === 'name') throw new ConfigError('-o name: a way has no name; use -o json')
  const kubectl = new Kubectl(flags)
  const namespace = await namespaceOf(kubectl, flags)
  const client = await clientOf(kubectl, flags.from, namespace)
  const node = flags.node ?? client.node
  const [proxy] = await findProxies(kubectl, flags, node)
  if (!proxy) return
  const target = targetOf(text, namespace)
  const seen = await seeRemoteNode(kubectl, proxy)
  const protocol = protocols.find((name) => name === flags.protocol)
  const isFit = (from: string) =>
    typeof understand({ target, from, protocol }, seen.states) !== 'string'
  const from = client.addresses.find(isFit) ?? client.from
  const asked = printable(`explain ${target} --from ${from}`)
  const why = node === undefined ? '; --node or --from pod/NAME chooses another' : ''
  process.stderr.write(
    `This is the plan of ${proxy.name}${why}. ${onNode(proxy, asked, 'whether its kernel agrees')}\n`,
  )
  const question = { from, ...outputOf(flags) }
  await explainSeen(target, protocol ? { ...question, protocol } : question, seen)
}
