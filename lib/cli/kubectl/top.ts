import type { Command } from 'commander'
import { addNamedOptions, namespaceOf, outputOf, serviceName, type NamedFlags } from './names.js'
import { answersOf, askAll, findProxies, type Asked, type RemoteProxy } from './proxies.js'
import { ConfigError } from '../../errors.js'
import { howToFollow } from '../../observe/flows/text.js'
import { daemonNumbers, sumOf, type DaemonNumbers } from '../../inspect/top/daemon-numbers.js'
import { Kubectl } from './kubectl.js'
import { counted, printable } from '../../state/names.js'
import { printed } from '../shared-options.js'
import { stopSignal, watch } from '../process.js'
import { topText, withRates, type Look } from '../../inspect/top/table.js'
import type { ServiceNumbers } from '../../inspect/top/rows.js'

interface TopFlags extends NamedFlags {
  readonly watch?: boolean
  readonly interval: string
}

const usage = `
The numbers are the sums over the nodes that are asked. In iptables, nftables and ebpf mode a proxy
counts with --flows only; ebpf mode without it counts what was translated at sockets.
A Service that nobody has connected to may have no line. With --watch a terminal shows of each table
what fits, the busiest Services first.`

/** Adds `kubectl svcproxy top`: Services by connections, summed over nodes. */
export function addTopCommand(program: Command): void {
  const command = program
    .command('top')
    .description('show Services by connections, bytes and errors, of one node or all')
    .option('-w, --watch', 'go on until it is stopped, with rates')
    .option('--interval <seconds>', 'time between two tables', '5')
  addNamedOptions(command, 'all-namespaces').addHelpText('after', usage).action(top)
}

async function top(flags: TopFlags): Promise<void> {
  const seconds = Number(flags.interval)
  if (!(seconds >= 1 && seconds <= 86_400)) {
    throw new ConfigError(`--interval: ${JSON.stringify(flags.interval)} is not 1 to 86400 seconds`)
  }
  const kubectl = new Kubectl(flags)
  const namespace = await namespaceOf(kubectl, flags)
  let before: Look | undefined
  const ask = async () => askAll(await findProxies(kubectl, flags), numbersOf)
  const everyMs = flags.watch === true ? seconds * 1000 : undefined
  await watch(everyMs, stopSignal(), ask, (asked) => {
    const now = lookIn(asked, namespace)
    print(now, before, flags)
    before = now
  })
}

interface ClusterLook extends Look {
  readonly nodes: readonly string[]
  /** Nodes that count nothing, and why. */
  readonly notes: readonly string[]
}

function print(now: ClusterLook, before: Look | undefined, flags: TopFlags): void {
  const rows = withRates(now, before)
  const isWide = flags.output === 'wide'
  if (flags.output === 'name') {
    for (const name of new Set(rows.map(({ service }) => serviceName(service))))
      process.stdout.write(`${printable(name)}\n`)
    return
  }
  const ports = counted(rows.length, 'service port')
  const nodes = counted(now.nodes.length, 'node')
  for (const note of now.notes) process.stderr.write(`${printable(note)}\n`)
  const { columns, rows: lines } = process.stdout
  const text = topText(rows, {
    title: `${ports} on ${nodes}`,
    columns: columns || 80,
    // The cursor has the last line. A file has no size, and a terminal may not know its own (0).
    lines: flags.watch === true && lines > 0 ? lines - 1 : undefined,
    hasRates: before !== undefined,
    isWide,
  })
  const data = { nodes: now.nodes, notes: now.notes, services: rows }
  process.stdout.write(printed(outputOf(flags), { data, text: `${text}\n` }))
}

interface NodeNumbers {
  readonly numbers: ReadonlyMap<string, DaemonNumbers>
  readonly note: string
}

function lookIn(asked: readonly Asked<NodeNumbers>[], namespace: string | undefined): ClusterLook {
  const answers = answersOf(asked)
  const sums = new Map<string, DaemonNumbers>()
  for (const { answer } of answers) {
    for (const [key, numbers] of answer.numbers) sums.set(key, sumOf(sums.get(key), numbers))
  }
  const rows = [...sums].map(rowOf)
  return {
    at: performance.now(),
    rows: rows.filter(
      ({ service }) => namespace === undefined || service.startsWith(`${namespace}/`),
    ),
    nodes: answers.map(({ proxy }) => proxy.node),
    notes: answers.flatMap(({ answer }) => (answer.note === '' ? [] : [answer.note])),
  }
}

async function numbersOf(proxy: RemoteProxy): Promise<NodeNumbers> {
  const numbers = daemonNumbers(await proxy.get('/metrics'))
  if (numbers.size > 0) return { numbers, note: '' }
  const { askDaemon } = await import('../seen-node.js')
  const { config, mode } = await askDaemon(proxy)
  const counts = config.flows.enabled || !['iptables', 'nftables', 'ebpf'].includes(mode)
  const note = counts ? '' : `${proxy.name} counts no connections in ${mode} mode; ${howToFollow}`
  return { numbers, note }
}

/** The key is `namespace/name:port/PROTOCOL`. */
function rowOf([key, numbers]: readonly [string, DaemonNumbers]): ServiceNumbers {
  const slash = key.lastIndexOf('/')
  return { service: key.slice(0, slash), protocol: key.slice(slash + 1), ...numbers }
}
