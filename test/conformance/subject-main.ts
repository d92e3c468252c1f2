/**
 * The process of a proxy under test: `subject-main.js MODE SETTINGS`, inside the node's namespace.
 * Takes changes as JSON lines and answers each once it is in force. MODE is a mode's name, or
 * `reference`, or `reference:FLAW`.
 */
import { networkInterfaces } from 'node:os'
import { createInterface } from 'node:readline'
import { configWith } from '../../lib/config/load.js'
import { modeSettings } from '../../lib/config/mode-settings.js'
import { KernelError, messageOf } from '../../lib/errors.js'
import type { Log, Mode, ModeName } from '../../lib/modes/mode.js'
import { modeLoaders } from '../../lib/modes/registry.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { Parsed } from '../../lib/state/objects.js'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseNode, parseServiceCidr } from '../../lib/state/parse-node.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker } from '../../lib/state/tracker.js'
import { Syncer } from '../../lib/sync/syncer.js'
import type { CaseSettings } from './case.js'
import type { Manifest } from './objects.js'
import type { SubjectAnswer } from './process-subject.js'
import { createReferenceProxy, flaws } from './reference-proxy.js'
import type { Changes } from './subject.js'

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

class SubjectProcess {
  readonly #tracker: Tracker
  readonly #mode: Mode
  readonly #syncer: Syncer
  /** Syncs run one after the other, whoever asked for them. */
  #last: Promise<void> = Promise.resolve()

  private constructor(mode: Mode, settings: CaseSettings) {
    this.#mode = mode
    this.#syncer = new Syncer({ mode })
    this.#tracker = new Tracker({
      families,
      allowsExternalIps: true,
      nodeName: 'node',
      bindAddress: '0.0.0.0',
      nodePortAddresses: settings.nodePortAddresses,
      detectLocal: settings.detectLocal,
    })
    this.#tracker.setLocalAddresses(
      Object.values(networkInterfaces()).flatMap((list) =>
        (list ?? []).map(({ address }) => address),
      ),
    )
  }

  static async start(name: string, settings: CaseSettings): Promise<SubjectProcess> {
    const subjects: SubjectProcess[] = []
    const mode = await createMode(name, settings, (full) => {
      for (const subject of subjects) {
        if (full) subject.#syncer.forget()
        subject.#sync().catch((error: unknown) => {
          log.error({ error: messageOf(error) }, 'sync on request failed')
        })
      }
    })
    const subject = new SubjectProcess(mode, settings)
    subjects.push(subject)
    return subject
  }

  async apply(changes: Changes): Promise<void> {
    for (const manifest of changes.removals) this.#remove(manifest)
    for (const manifest of changes.upserts) this.#upsert(manifest)
    await this.#sync()
  }

  async run(signal: AbortSignal): Promise<void> {
    await this.#mode.run(signal)
    await this.#last
    await this.#mode.close()
  }

  #sync(): Promise<void> {
    const next = this.#last.then(() => this.#syncNow())
    this.#last = next.catch(() => undefined)
    return next
  }

  async #syncNow(): Promise<void> {
    for (const state of this.#tracker.take().states) {
      const report = await this.#syncer.sync(state)
      if (report.outcome === 'failed') {
        throw new KernelError('failed', `${state.family}: ${report.error ?? ''}`, {
          detail: report.detail ?? '',
        })
      }
      for (const failure of report.failed) log.warn(failure, 'service port not programmed')
    }
  }

  #upsert(manifest: Manifest): void {
    switch (manifest.kind) {
      case 'Service':
        this.#take(
          parseService(manifest),
          (service) => this.#tracker.upsertService(service),
          ({ namespace, name }) => this.#tracker.removeService(namespace, name),
        )
        break
      case 'EndpointSlice':
        this.#take(
          parseEndpointSlice(manifest),
          (slice) => this.#tracker.upsertEndpointSlice(slice),
          ({ namespace, name }) => this.#tracker.removeEndpointSlice(namespace, name),
        )
        break
      case 'Node':
        this.#take(parseNode(manifest), (node) => this.#tracker.setNode(node))
        break
      case 'ServiceCIDR':
        this.#take(parseServiceCidr(manifest), (cidr) => this.#tracker.upsertServiceCidr(cidr))
        break
    }
  }

  #take<T>(
    parsed: Parsed<T>,
    accept: (value: T) => void,
    forget?: (identity: { readonly namespace: string; readonly name: string }) => void,
  ): void {
    if (parsed.outcome === 'accepted') accept(parsed.value)
    else if (parsed.outcome === 'ignored') forget?.(parsed.identity)
    else log.warn(parsed, 'malformed object')
  }

  #remove(manifest: Manifest): void {
    const { name, namespace = '' } = manifest.metadata as { name: string; namespace?: string }
    if (manifest.kind === 'Service') this.#tracker.removeService(namespace, name)
    else if (manifest.kind === 'EndpointSlice') this.#tracker.removeEndpointSlice(namespace, name)
    else if (manifest.kind === 'ServiceCIDR') this.#tracker.removeServiceCidr(name)
    else this.#tracker.setNode(undefined)
  }
}

async function createMode(
  name: string,
  settings: CaseSettings,
  resync: (full: boolean) => void,
): Promise<Mode> {
  const [kind = '', flaw] = name.split(':')
  if (kind === 'reference') {
    return createReferenceProxy(flaws.find((candidate) => candidate === flaw))
  }
  const modeName = Object.keys(modeLoaders).find((known) => known === name) as ModeName | undefined
  const load = modeName && modeLoaders[modeName]
  if (!load) throw new Error(`no mode is called ${name}`)
  const config = configWith({
    'iptables.masqueradeAll': settings.masqueradeAll,
    'nftables.masqueradeAll': settings.masqueradeAll,
    'iptables.localhostNodePorts': settings.localhostNodePorts,
  })
  const definition = await load()
  return definition.create(modeSettings(config, modeName, families), {
    log,
    meter: {
      count: () => undefined,
      gauge: () => undefined,
      observe: () => undefined,
      forget: () => undefined,
    },
    resync: (reason, { full }) => {
      log.warn({ full }, reason)
      resync(full)
    },
  })
}

const answer = (result: SubjectAnswer) => process.stdout.write(`${JSON.stringify(result)}\n`)

const [, , name = '', settingsText = '{}'] = process.argv
const stop = new AbortController()
try {
  const subject = await SubjectProcess.start(name, JSON.parse(settingsText) as CaseSettings)
  const running = subject.run(stop.signal)
  answer({})
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      await subject.apply(JSON.parse(line) as Changes)
      answer({})
    } catch (error) {
      const detail = error instanceof KernelError ? error.detail : ''
      answer({ error: `${messageOf(error)} ${detail}` })
    }
  }
  stop.abort()
  await running
} catch (error) {
  answer({ error: messageOf(error) })
  process.exitCode = 1
}
