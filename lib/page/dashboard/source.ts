import { Chosen, type ChosenDeps, type Selection, type Shown } from './chosen.js'
import { ConfigError, messageOf } from '../../errors.js'
import { ipvsSettings } from '../../modes/ipvs/settings.js'
import { noCounters } from '../view.js'
import { ServiceLines } from './service-lines.js'
import { Stream } from './stream.js'
import { setTimeout as delay } from 'node:timers/promises'
import { decided, ended, type FamilyProgress } from './progress.js'
import type { PageCommand } from '../page-command.js'
import type { AnswerCount } from '../view.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { FlowLog } from '../../observe/flows/flow-log.js'
import type { IpFamily } from '../../state/ip.js'
import type { Log } from '../../modes/mode.js'
import type { PageSource } from '../server.js'
import type { PageView } from '../readers.js'
import type { PodNames } from '../../sources/pod-names.js'
import type { SyncReport } from '../../sync/syncer.js'

interface DashboardDeps extends ChosenDeps {
  readonly nodeName: string
  readonly podNames: PodNames
  readonly log: Log
  /** The stream of connections; undefined when they are not followed. */
  readonly flows: FlowLog | undefined
  /** Connections so far, by endpoint of a service port. */
  readonly count: (state: DesiredState, service: string) => Promise<readonly AnswerCount[]>
}

/** A sync that takes longer waits for the kernel or for a tool, not for this thread. */
const longSyncMs = 1_000

/** The page of a running daemon. Its commands only select what to show. */
export class DashboardSource implements PageSource {
  readonly #deps: DashboardDeps
  readonly #listeners = new Set<() => void>()
  readonly #families = new Map<IpFamily, FamilyProgress>()
  readonly #lines = new ServiceLines()
  readonly #chosen: Chosen
  readonly #stream: Stream
  /** The families that the sync under way has not finished. */
  #syncing = new Set<IpFamily>()
  /** Called when the sync under way ends. */
  #ends: (() => void)[] = []
  #selection: Selection = {
    service: '',
    sender: 'client-pod',
    target: 'ClusterIP',
    family: 'IPv4',
  }
  /** The port name that is shown while the selected one does not exist. */
  #first = ''
  #answers: readonly AnswerCount[] = []
  #obstacles: readonly string[] = []
  /** The error that was logged last. */
  #told = ''

  constructor(deps: DashboardDeps) {
    this.#deps = deps
    this.#chosen = new Chosen(deps)
    this.#stream = new Stream(deps.flows)
    deps.flows?.onChange(() => this.#tell())
  }

  /** A sync begins. This and `synced` do little work, because the view is made when it is read. */
  started(states: readonly DesiredState[]): void {
    this.#syncing = new Set(states.map(({ family }) => family))
    for (const state of states) {
      this.#families.set(state.family, decided(this.#families.get(state.family), state))
    }
    this.#tell()
  }

  /** One family of the sync is done. */
  synced(report: SyncReport): void {
    const before = this.#families.get(report.family)
    if (before) this.#families.set(report.family, ended(before, report))
    this.#syncing.delete(report.family)
    if (this.#syncing.size > 0) return
    for (const end of this.#ends) end()
    this.#ends = []
    this.#tell()
  }

  obstacles(texts: readonly string[]): void {
    this.#obstacles = texts.map((text) => `Connections fail on this node: ${text}.`)
    this.#tell()
  }

  /** Resolves when no sync is under way. */
  async idle(): Promise<void> {
    if (this.#syncing.size === 0) return
    await Promise.race([
      new Promise<void>((resolve) => this.#ends.push(resolve)),
      delay(longSyncMs, undefined, { ref: false }),
    ])
  }

  view(): PageView {
    const { mode, nodeName, current } = this.#deps
    const { config } = current()
    const families = [...this.#families.values()]
    this.#lines.update(families)
    const shown = this.#shown()
    const { nameOf, ...chosen } = shown ? this.#chosen.show(shown) : this.#chosen.nothing()
    const [namespace = '', name = ''] = chosen.service.name.split(/[/:]/)
    return {
      isReadOnly: true,
      where: `node ${nodeName}, as its proxy sees it; nothing can be changed here`,
      limits: this.#obstacles,
      mode,
      modes: [mode],
      listensItself: config.userspace.portals === 'addresses',
      scheduler: ipvsSettings(config).scheduler,
      busy: families.length > 0 ? '' : 'waiting for Services and EndpointSlices',
      pending: this.#pending(families),
      services: this.#lines.lines,
      ...chosen,
      nodeNames: [nodeName, 'other nodes'],
      sender: this.#selection.sender,
      senders: ['client-pod', 'node', 'outside', 'backend'],
      counters: noCounters,
      continuous: false,
      answers: byName(this.#answers, nameOf),
      asked: this.#answers.reduce((sum, { count }) => sum + count, 0),
      log: [],
      ...this.#stream.view(),
      mostReplicas: 0,
      marks: [],
      comparison: [],
      timeline: null,
      lessons: [],
      exercises: [],
      objects: [],
      kubectl: shown ? `kubectl get service ${name} -n ${namespace} -o yaml` : '',
      kubeconfig: '',
    }
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  failed(error: unknown): void {
    const message = messageOf(error)
    // Readers come again soon, so the same error is logged only once.
    if (message === this.#told) return
    this.#told = message
    this.#deps.log.error({ error: message }, 'the dashboard cannot show the state')
  }

  perform(command: PageCommand): Promise<void> {
    switch (command.do) {
      case 'select':
      case 'family':
      case 'sender':
      case 'target': {
        const { do: what, ...choice } = command
        this.#selection = { ...this.#selection, ...choice }
        if (what === 'select' || what === 'family') this.#answers = []
        break
      }
      case 'flows':
        this.#stream.choose(command)
        break
      default:
        return Promise.reject(
          new ConfigError('this page is read-only; use kubectl to change objects'),
        )
    }
    this.#tell()
    return Promise.resolve()
  }

  /** Counts while a page is open. */
  async count(): Promise<void> {
    if (this.#listeners.size === 0) return
    const shown = this.#shown()
    if (!shown?.progress.applied) return
    const { state } = shown.progress.applied
    const answers = await this.#deps.count(state, shown.key)
    if (JSON.stringify(answers) === JSON.stringify(this.#answers)) return
    this.#answers = answers
    this.#tell()
  }

  /** The selected service port, or the first by name; in the selected family if it has that. */
  #shown(): Shown | undefined {
    const key = this.#lines.keyOf(this.#selection.service) ?? this.#firstKey()
    if (key === undefined) return undefined
    const found = [...this.#families.values()].flatMap((progress) => {
      const { wanted, applied } = progress
      const service = applied?.state.services.get(key) ?? wanted.services.get(key)
      return service ? [{ progress, service }] : []
    })
    const { progress, service } =
      found.find((each) => each.progress.family === this.#selection.family) ?? found[0] ?? {}
    if (!progress || !service) return undefined
    const { namespace, name } = service.name
    return {
      ...{ key, progress, selection: this.#selection },
      families: found.map((each) => each.progress.family),
      podNames: this.#deps.podNames.of(`${namespace}/${name}`),
    }
  }

  /** The first port by name. It stays the same until that port is gone. */
  #firstKey(): string | undefined {
    const known = this.#lines.keyOf(this.#first)
    if (known !== undefined) return known
    let first: string | undefined
    for (const name of this.#lines.lines.keys()) {
      if (first === undefined || name < first) first = name
    }
    this.#first = first ?? ''
    return this.#lines.keyOf(this.#first)
  }

  #pending(families: readonly FamilyProgress[]): string {
    const failed = families.find(({ error }) => error !== '')
    if (failed) {
      return `the last ${failed.family} sync failed and will be tried again: ${failed.error}`
    }
    const { pending } = this.#lines
    if (pending === 1) return '1 service port is not in the kernel as it should be'
    return pending === 0 ? '' : `${pending} service ports are not in the kernel as they should be`
  }

  #tell(): void {
    for (const listener of this.#listeners) listener()
  }
}

/** A pod answers at an address of each IP family. */
function byName(
  counts: readonly AnswerCount[],
  nameOf: (endpoint: string) => string,
): readonly AnswerCount[] {
  const sums = new Map<string, number>()
  for (const { name: key, count } of counts) {
    const name = nameOf(key)
    sums.set(name, (sums.get(name) ?? 0) + count)
  }
  return Array.from(sums, ([name, count]) => ({ name, count }))
}
