/**
 * The process of a proxy under test: `subject-main.js MODE SETTINGS`, inside the node's namespace.
 * Takes changes as JSON lines and answers each once it is in force. MODE is a mode's name, or
 * `reference`, or `reference:FLAW`. With `probe` for SETTINGS it prints what MODE lacks here.
 */
import { createInterface } from 'node:readline'
import { substitutesOf } from '../../lib/config/tracker-settings.js'
import { configWith } from '../../lib/config/load.js'
import { KernelError, messageOf } from '../../lib/errors.js'
import { CheckThread } from '../../lib/sources/health/check-thread.js'
import { HealthChecks } from '../../lib/sources/health/health-checks.js'
import { Conntrack } from '../../lib/kernel/conntrack.js'
import { startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'
import { modeNames } from '../../lib/modes/registry.js'
import type { Log, Meter, Mode } from '../../lib/modes/mode.js'
import type { IpFamily } from '../../lib/state/ip.js'
import { interfaceAddresses } from '../../lib/sources/node-addresses.js'
import type { ObjectKind } from '../../lib/sources/source.js'
import { TrackerSink } from '../../lib/sources/tracker-sink.js'
import { identityOf } from '../../lib/state/parse-object.js'
import { Tracker } from '../../lib/state/tracker.js'
import { DepartedFlows } from '../../lib/sync/departed-flows.js'
import { FlowCleaner } from '../../lib/sync/flow-cleaner.js'
import { Syncer } from '../../lib/sync/syncer.js'
import { configValues, type CaseSettings } from './case.js'
import { patience } from './flows.js'
import type { Manifest } from './objects.js'
import type { SubjectAnswer, SubjectOrder } from './process-subject.js'
import { createReferenceProxy, flaws } from './reference-proxy.js'
import type { Changes } from './subject.js'
import { variantOf } from './variants.js'

const families: readonly IpFamily[] = ['IPv4', 'IPv6']

const print =
  (level: string) =>
  (fields: object, message: string): void =>
    void process.stderr.write(`${level} ${message} ${JSON.stringify(fields)}\n`)
const log: Log = {
  debug: () => undefined,
  info: () => undefined,
  warn: print('warn'),
  error: print('error'),
}

const meter: Meter = {
  count: () => undefined,
  gauge: () => undefined,
  observe: () => undefined,
  forget: () => undefined,
}

/**
 * How often a mode compares its rules with the kernel. Tests would wait long for the default. A
 * comparison starts programs, which is slow in a machine that is itself a process.
 */
const checkRulesMs = patience > 1 ? 30_000 : 3000

interface Given {
  readonly settings: CaseSettings
  /** The cgroup of the clients on the node; empty: the one of all processes. */
  readonly cgroup: string
}

let opened: Conntrack | undefined
const openedTable = () => (opened ??= new Conntrack())

class SubjectProcess {
  readonly #tracker: Tracker
  readonly #sink: TrackerSink
  readonly #mode: Mode
  readonly #syncer: Syncer
  readonly #checks: HealthChecks
  /**
   * Undefined for modes that clean up by themselves, and for a proxy with the flaw of not doing it.
   */
  readonly #flows: FlowCleaner | undefined
  readonly #departed = new DepartedFlows({ table: openedTable, log })
  /** Syncs run one after the other. */
  #last: Promise<void> = Promise.resolve()
  #retry: NodeJS.Timeout | undefined

  private constructor(name: string, mode: Mode, settings: CaseSettings) {
    this.#mode = mode
    this.#flows =
      name === 'reference:keeps-stale-flows' || mode.staleFlows
        ? undefined
        : new FlowCleaner({
            table: openedTable,
            log,
            meter,
            now: () => performance.now(),
          })
    this.#syncer = new Syncer(mode)
    this.#tracker = new Tracker({
      families,
      allowsExternalIps: settings.allowsExternalIps,
      nodeName: 'node',
      bindAddress: '0.0.0.0',
      nodePortAddresses: settings.nodePortAddresses,
      detectLocal: settings.detectLocal,
      translatesOnce: !name.startsWith('userspace'),
      substitutes: substitutesOf(modeNames.find((mode) => name.startsWith(mode)) ?? ''),
    })
    this.#checks = new HealthChecks({
      checker: (options) => new CheckThread(options),
      tracker: this.#tracker,
      requestSync: () => {
        this.#syncAside('after a health check')
      },
      listener: {
        ...{ followed: () => undefined, turned: () => undefined, counted: () => undefined },
        threadEnded: (reason) => log.error({ reason }, 'the thread that checks ended'),
      },
    })
    this.#tracker.setLocalAddresses(interfaceAddresses() ?? [])
    this.#sink = new TrackerSink(this.#tracker, 'node', {
      changed: () => undefined,
      malformed: (kind, identity, reason) => log.warn({ kind, ...identity, reason }, 'malformed'),
      warned: (kind, identity, warning) => log.warn({ kind, ...identity, warning }, 'left out'),
      nodeChanged: () => undefined,
      failed: () => undefined,
    })
  }

  static async start(name: string, { settings, cgroup }: Given): Promise<SubjectProcess> {
    const subjects: SubjectProcess[] = []
    const mode = await createMode(name, { settings, cgroup }, () => {
      for (const subject of subjects) {
        subject.#syncer.forget()
        subject.#syncAside('on request')
      }
    })
    const subject = new SubjectProcess(name, mode, settings)
    subjects.push(subject)
    return subject
  }

  async apply(changes: Changes): Promise<void> {
    for (const manifest of changes.removals) {
      const { namespace, name } = identityOf(manifest)
      this.#sink.remove(kindOf(manifest), namespace, name)
    }
    for (const manifest of changes.upserts) this.#sink.upsert(kindOf(manifest), manifest)
    await this.#sync()
    await (this.#mode.staleFlows ?? this.#flows)?.idle()
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#mode.run(signal), this.#checks.run(signal)])
    await this.#last
    clearTimeout(this.#retry)
    await this.#mode.close()
  }

  #sync(): Promise<void> {
    const next = this.#last.then(() => this.#syncNow())
    this.#last = next.then(
      (isComplete) => {
        if (!isComplete) this.#tryAgain()
      },
      () => {
        this.#tryAgain()
      },
    )
    return next.then(() => undefined)
  }

  /** As the daemon does: somebody may delete the rules in the middle of a sync. */
  #tryAgain(): void {
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => {
      this.#syncAside('after a failure')
    }, checkRulesMs)
  }

  #syncAside(why: string): void {
    this.#sync().catch((error: unknown) => {
      log.error({ error: messageOf(error) }, `sync ${why} failed`)
    })
  }

  /** Resolves to whether every service port is programmed. */
  async #syncNow(): Promise<boolean> {
    const update = this.#tracker.take()
    this.#checks.started(update)
    let isComplete = true
    for (const state of update.states) {
      const report = await this.#syncer.sync(state)
      if (report.outcome === 'failed') {
        throw new KernelError('failed', `${state.family}: ${report.error ?? ''}`, {
          detail: report.detail ?? '',
        })
      }
      this.#flows?.applied(state, report.late)
      if (!this.#mode.staleFlows) this.#departed.applied(state)
      for (const failure of report.failed) log.warn(failure, 'service port not programmed')
      isComplete &&= report.failed.length === 0
    }
    return isComplete
  }
}

async function createMode(
  name: string,
  { settings, cgroup }: Given,
  resync: () => void,
): Promise<Mode> {
  const [kind = '', flaw] = name.split(':')
  if (kind === 'reference') {
    return createReferenceProxy(flaws.find((candidate) => candidate === flaw))
  }
  const variant = variantOf(name)
  if (!variant) throw new Error(`no mode is called ${name}`)
  const config = configWith({
    ...configValues(settings),
    'iptables.syncPeriod': checkRulesMs,
    'nftables.syncPeriod': checkRulesMs,
    'ipvs.syncPeriod': checkRulesMs,
    'ebpf.cgroup': cgroup,
    // Without a bpffs nothing stays, so that the next process begins with nothing.
    'ebpf.bpffs': '',
    // Connections that a case keeps open would delay every restart.
    'userspace.drainTimeout': 500,
    ...(variant.dataPath ? { 'userspace.datapath': variant.dataPath } : {}),
    ...(variant.portals ? { 'userspace.portals': variant.portals } : {}),
    ...(variant.sourceAddress ? { 'userspace.sourceAddress': variant.sourceAddress } : {}),
  })
  const definition = await variant.load()
  return definition.create(config, families, {
    log,
    meter,
    resync: (reason, { byOthers }) => {
      log.warn({ byOthers }, reason)
      resync()
    },
  })
}

function kindOf({ kind }: Manifest): ObjectKind {
  if (kind === 'Service' || kind === 'EndpointSlice' || kind === 'Node' || kind === 'ServiceCIDR') {
    return kind
  }
  throw new Error(`objects of kind ${String(kind)} are not for a proxy`)
}

const answer = (result: SubjectAnswer) => process.stdout.write(`${JSON.stringify(result)}\n`)

/** What the mode needs and this kernel lacks; empty if the mode can run. */
async function missingFor(name: string): Promise<readonly string[]> {
  const definition = await variantOf(name)?.load()
  const findings = (await definition?.probe({ log })) ?? []
  return findings
    .filter(({ ok, required }) => required && !ok)
    .map(({ what, seen }) => `${what}: ${seen}`)
}

/** A subject until it is ended. */
async function running(name: string, given: Given) {
  const stop = new AbortController()
  const subject = await SubjectProcess.start(name, given)
  const whole = subject.run(stop.signal)
  return {
    subject,
    end: async () => {
      stop.abort()
      await whole
    },
  }
}

const [, , name = '', settingsText = '{}', cgroup = ''] = process.argv
await startProgramsQuickly()
if (settingsText === 'probe') {
  process.stdout.write(`${JSON.stringify(await missingFor(name))}\n`)
  process.exit()
}
try {
  const settings = JSON.parse(settingsText) as CaseSettings
  let current = await running(name, { settings, cgroup })
  answer({})
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      const order = JSON.parse(line) as SubjectOrder
      if ('settings' in order) {
        await current.end()
        current = await running(name, { settings: order.settings, cgroup })
      } else await current.subject.apply(order)
      answer({})
    } catch (error) {
      const detail = error instanceof KernelError ? error.detail : ''
      answer({ error: `${messageOf(error)} ${detail}`.slice(0, 600) })
    }
  }
  await current.end()
} catch (error) {
  answer({ error: messageOf(error) })
  process.exitCode = 1
}
