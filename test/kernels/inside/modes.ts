/**
 * `modes.js PARTS NAME…` writes the full ruleset of each mode into the kernel that it runs in. It
 * prints TAP. The names of its tests are cells of docs/kernels.md. All modes share one process,
 * because its start takes long.
 */
import { execFileSync, execSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import type { ModeName } from '../../../lib/config/config.js'
import { configWith } from '../../../lib/config/load.js'
import { addressOf } from '../../../lib/lab/world/topology.js'
import { cleanLeftovers } from '../../../lib/modes/leftovers.js'
import type { Mode, ModeContext, ModeDefinition } from '../../../lib/modes/mode.js'
import { writerVariable } from '../../../lib/modes/nftables/probe.js'
import { variantOf } from '../../conformance/variants.js'
import { changesOfMode } from '../../support/mode-change.js'
import { fewCapabilities } from '../../support/few-capabilities.js'
import { cellName } from '../columns.js'
import { families, statesOfCases } from './case-states.js'
import { nodeContents } from './node-contents.js'

const warnings: object[] = []
const nothing = () => undefined
const warn = (fields: object, message: string) => void warnings.push({ message, ...fields })
const context: ModeContext = {
  log: { debug: nothing, info: nothing, warn, error: warn },
  meter: { count: nothing, gauge: nothing, observe: nothing, forget: nothing },
  resync: nothing,
}
const config = configWith({})
const [parts = '', ...names] = process.argv.slice(2)

/** A mode by its name in the suite. `nftables-by-nft` is nftables mode that writes by `nft`. */
interface Subject {
  readonly name: string
  readonly definition: ModeDefinition
  readonly mode: keyof typeof partners
}

/** The mode that takes over from each mode, and gives back to it. */
const partners = {
  userspace: 'iptables',
  iptables: 'nftables',
  nftables: 'ipvs',
  ebpf: 'iptables',
  ipvs: 'nftables',
} as const

/** Played with clients that never rest. Those between modes that every kernel has are in tier kernel. */
const withOpenConnections: Readonly<Partial<Record<Subject['mode'], readonly ModeName[]>>> = {
  ebpf: ['ipvs', 'ebpf', 'ipvs'],
}

/** Without KVM, clients that ask without pauses leave the proxy no time to start. */
const guestPauseMs = 2_000

async function subjectOf(name: string): Promise<Subject> {
  const variant = variantOf(name.replace('-by-nft', ''))
  if (!variant) throw new Error(`no mode is called ${name}`)
  const { mode } = variant
  if (mode === 'winuserspace') throw new Error(`${name} is no mode of Linux`)
  return { name, definition: await variant.load(), mode }
}

async function withWriter<T>({ name }: Subject, act: () => Promise<T>): Promise<T> {
  if (name.endsWith('-by-nft')) process.env[writerVariable] = 'nft'
  try {
    return await act()
  } finally {
    Reflect.deleteProperty(process.env, writerVariable)
  }
}

/** Starts the mode as the daemon does, and writes everything. */
async function start(
  t: Test,
  { name, definition, mode }: Subject,
  states: ReturnType<typeof statesOfCases>,
): Promise<Mode> {
  const running = await definition.create(config, families, context)
  for (const state of states) {
    const began = performance.now()
    const { failed, objects } = await running.apply(running.plan(state))
    const unexpected = failed.filter(
      ({ reason, event }) =>
        mode !== 'userspace' || !(reason.includes('SCTP') || event === 'EndpointLeadsBack'),
    )
    t.same(unexpected, [], `${name}, ${state.family}: no Service is left out`)
    t.comment(`${state.family}: ${objects} objects in ${Math.round(performance.now() - began)} ms`)
  }
  return running
}

/** Resolves to what the mode needs and this kernel lacks. */
async function probe(t: Test, { definition }: Subject): Promise<readonly string[]> {
  const findings = await definition.probe(context)
  for (const { what, ok, seen } of findings) t.comment(`${ok ? 'ok' : 'without'} ${what}: ${seen}`)
  return findings
    .filter(({ ok, required }) => required && !ok)
    .map(({ what, seen }) => `${what}: ${seen}`)
}

/** Whether each mode runs here, as `kube-proxy check` says. */
function checkCommand(): ReadonlyMap<string, boolean> {
  const program = fileURLToPath(new URL('../../../lib/cli/main.js', import.meta.url))
  // The exit code is 0, because no mode is asked for. It is 1 if a requested mode cannot run.
  const json = execFileSync(process.execPath, [program, 'check', '-o', 'json'], {
    encoding: 'utf8',
  })
  const all = JSON.parse(json) as readonly { readonly mode: string; readonly runs: boolean }[]
  return new Map(all.map(({ mode, runs }) => [mode, runs]))
}

async function load(t: Test, subject: Subject): Promise<void> {
  const { definition, mode } = subject
  const states = statesOfCases(mode)
  const first = await start(t, subject, states)
  await first.close()
  const restarted = await start(t, subject, states)
  for (const state of states) {
    t.same(await definition.differences(state, config), [], `${state.family}: as planned`)
  }
  await restarted.close()
}

/**
 * These topics have every kind of object. To list those of all topics takes minutes without KVM.
 */
const topicsHandedOver = ['nodeport', 'loadbalancer']

async function handOver(t: Test, from: Subject, to: Subject): Promise<void> {
  const use = async (subject: Subject) => {
    const running = await start(t, subject, statesOfCases(subject.mode, topicsHandedOver))
    await running.close()
    t.ok(await cleanLeftovers(subject.mode, context), 'what the mode before left is removed')
    return nodeContents()
  }
  const alone = await use(to)
  await to.definition.cleanup(context)
  const first = await use(from)
  t.same(await use(to), alone, `${to.name} is as if ${from.name} had never been`)
  t.same(await use(from), first, `and ${from.name} again`)
  await from.definition.cleanup(context)
}

async function cleanup(
  t: Test,
  { definition }: Subject,
  empty: ReturnType<typeof nodeContents>,
): Promise<void> {
  await definition.cleanup(context)
  t.same(nodeContents(), empty, 'nothing is left')
}

async function play(name: string): Promise<void> {
  const subject = await subjectOf(name)
  let missing: readonly string[] = []
  await t.test(cellName(name, 'probe'), async (t) => {
    missing = await withWriter(subject, () => probe(t, subject))
    if (name === subject.mode) t.equal(checked.get(name), missing.length === 0, 'check agrees')
    if (subject.mode === 'ebpf' && missing.length === 0) fewCapabilities(t)
    for (const each of missing) console.log(`# ${name} cannot run: ${each}`)
  })
  if (missing.length > 0) return
  if (parts.includes('load')) {
    const empty = nodeContents()
    await t.test(cellName(name, 'load'), (t) => withWriter(subject, () => load(t, subject)))
    await t.test(cellName(name, 'cleanup'), (t) => cleanup(t, subject, empty))
  }
  if (!parts.includes('hand-over')) return
  const partner = await subjectOf(partners[subject.mode])
  const lacks = (await partner.definition.probe(context)).some(
    ({ ok, required }) => required && !ok,
  )
  const skip = lacks ? `this kernel cannot run ${partner.name}` : false
  await t.test(cellName(name, 'hand-over'), { skip }, async (t) => {
    await withWriter(subject, () => handOver(t, subject, partner))
    const changes = withOpenConnections[subject.mode]
    if (changes)
      await t.test(changes.join(' → '), (t) => changesOfMode(t, changes, { pauseMs: guestPauseMs }))
  })
  await partner.definition.cleanup(context)
  await subject.definition.cleanup(context)
}

// The node gets the addresses of the suite's node.
execSync(
  ['ip link add node type bridge', 'ip link set node up']
    .concat(families.map((family) => `ip address add ${addressOf('node', family)} dev node`))
    .join(' && '),
)
const checked = checkCommand()
for (const name of names) await play(name)
for (const warning of new Set(warnings.map((each) => JSON.stringify(each)))) t.comment(warning)
