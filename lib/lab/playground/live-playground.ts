import { pause } from '../../async.js'
import { Commands } from './commands.js'
import { reachPod, Selection } from './selection.js'
import { CounterReader } from './counter-reader.js'
import { Learning } from './learning.js'
import { ModeSwitch } from './mode-switch.js'
import { PodMarks } from './pod-marks.js'
import { parseDaemonLine, Timeline } from './timeline.js'
import { Programmed } from './programmed.js'
import { ShownService } from './shown-service.js'
import { Traffic } from './traffic.js'
import { WebApp } from './web-app.js'
import { YamlObjects } from './yaml-objects.js'
import { addressOf } from '../../state/ip.js'
import type { ModeName } from '../../config/config.js'
import type { PageCommand } from '../../page/page-command.js'
import type { ObjectLine } from '../../page/view.js'
import { noFlows, type PageView } from '../../page/readers.js'
import type { LiveCluster } from './test-bed.js'
import type { PageSource } from '../../page/server.js'

const watched = ['services', 'endpointslices.discovery.k8s.io', 'pods', 'deployments.apps'] as const
const firstReplicas = 3

interface LivePlaygroundOptions {
  readonly modes: readonly [ModeName, ...ModeName[]]
  /** What cannot be shown here, and why; if absent, the limits of the cluster. */
  readonly limits?: readonly string[]
  /** With which rights the playground runs. */
  readonly where: string
}

/** A cluster that a page shows and controls: one Service, one sender, one target at a time. */
export class LivePlayground implements PageSource {
  readonly #cluster: LiveCluster
  readonly #options: LivePlaygroundOptions
  readonly #app: WebApp
  readonly #yaml: YamlObjects
  readonly #marks: PodMarks
  readonly #traffic: Traffic
  readonly #timeline: Timeline
  readonly #learning: Learning
  readonly #commands: Commands
  readonly #counterReader: CounterReader
  readonly #shown: ShownService
  readonly #selection: Selection
  readonly #switch: ModeSwitch
  readonly #programmed: Programmed
  readonly #listeners = new Set<() => void>()
  readonly #stop = new AbortController()
  #isStale = true

  constructor(cluster: LiveCluster, options: LivePlaygroundOptions) {
    this.#cluster = cluster
    this.#options = options
    const { layout, gauge } = cluster.testBed
    this.#app = new WebApp(cluster.api.registry)
    this.#selection = new Selection({
      layout,
      service: () => this.#app.service(),
      pods: () => this.#app.pods(),
      rooms: cluster.pods,
    })
    this.#yaml = new YamlObjects(cluster.api)
    this.#marks = new PodMarks(cluster.api.registry, this.#stop.signal)
    this.#programmed = new Programmed(cluster.api.registry.store)
    this.#shown = new ShownService({
      cluster,
      app: this.#app,
      selection: this.#selection,
      programmed: this.#programmed,
      changed: () => (this.#isStale = true),
    })
    this.#learning = this.#learn()
    this.#counterReader = new CounterReader(gauge, () => this.#tell())
    this.#traffic = new Traffic(cluster.testBed, {
      next: () => this.#selection.request(this.#switch.mode),
      podAt: (endpoint) => this.#app.pods().find(({ ip }) => ip === addressOf(endpoint))?.name,
      changed: () => this.#moved(),
      recorded: (entry) => this.#learning.lessons.recorded(entry),
    })
    this.#timeline = new Timeline({
      store: cluster.api.registry.store,
      now: () => performance.timeOrigin + performance.now(),
      isOfInterest: (pod) => this.#switch.busy === '' && this.#app.isSelected(pod),
      reach: (pod) => this.#reach(pod),
      changed: () => this.#tell(),
    })
    this.#switch = new ModeSwitch(cluster, options.modes, {
      changed: () => this.#tell(),
      said: (text) => this.#said(text),
      started: (mode) => {
        this.#shown.rules.show(mode, mode)
        this.#refresh()
      },
      isShown: () => {
        this.#refresh()
        return this.#programmed.state !== undefined
      },
    })
    this.#commands = this.#obey()
  }

  /** Runs until the signal; the page is served meanwhile. */
  async run(signal: AbortSignal): Promise<void> {
    signal.addEventListener('abort', () => this.#stop.abort(), { once: true })
    this.#app.create(firstReplicas, this.#cluster.testBed.layout.ports)
    const { store } = this.#cluster.api.registry
    const subscriptions = [
      ...watched.map((name) => store.subscribe(name, () => (this.#isStale = true))),
      ...this.#timeline.follow(),
      ...this.#programmed.follow(),
    ]
    try {
      await this.#use(this.#switch.mode).catch((error: unknown) => {
        // A user who stops the playground while the daemon starts needs no error about the daemon.
        if (!signal.aborted) throw error
      })
      while (!signal.aborted) {
        if (this.#isStale) {
          this.#isStale = false
          this.#refresh()
        }
        await pause(refreshMs, signal)
      }
    } finally {
      for (const unsubscribe of subscriptions) unsubscribe()
      this.#stop.abort()
      await this.#traffic.close()
      await this.#counterReader.close()
    }
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  view(): PageView {
    const { senders, limits, config, rooms } = this.#cluster.testBed.layout
    return {
      isReadOnly: false,
      where: this.#options.where,
      limits: this.#options.limits ?? limits,
      listensItself: config['userspace.portals'] === 'addresses',
      families: [],
      family: '',
      services: this.#app.services(),
      replicas: this.#app.replicas(),
      mostReplicas: Object.values(rooms).flat().length,
      marks: this.#marks.list(),
      senders,
      counters: this.#counterReader.view,
      ...this.#switch.view,
      ...this.#selection.view,
      ...this.#shown.view,
      ...this.#traffic.view,
      ...this.#learning.view,
      flows: noFlows,
      stream: null,
      timeline: this.#timeline.view,
      objects: this.#yaml.list(),
      kubectl: this.#commands.kubectl,
      kubeconfig: this.#cluster.kubeconfig,
    }
  }

  yaml(line: ObjectLine): string | undefined {
    return this.#yaml.read(line)
  }

  perform(command: PageCommand): Promise<void> {
    return this.#commands.perform(command)
  }

  async #use(mode: string): Promise<void> {
    try {
      await this.#switch.use(mode, this.#stop.signal)
      this.#traffic.clearAnswers()
    } finally {
      this.#moved()
    }
  }

  #said(text: string): void {
    const line = parseDaemonLine(text)
    if (!line) return
    // This comes first, because the timeline needs the state that is written.
    if (this.#programmed.daemonSaid(line)) this.#isStale = true
    this.#shown.failing.daemonSaid(line)
    this.#timeline.daemonSaid(line)
  }

  #reach(pod: string): Promise<boolean> {
    const { testBed } = this.#cluster
    const { signal } = this.#stop
    const wanted = () => this.#shown.wanted(this.#switch.mode)
    const probe = () => this.#selection.probe(this.#switch, { has: this.#programmed.state, wanted })
    return this.#counterReader
      .unseen((inMode) => {
        const passed = (keys: readonly string[]) => inMode(this.#switch.mode, keys)
        const { mode } = this.#switch
        return reachPod(pod, { testBed, mode, probe, passed, signal })
      })
      .finally(() => this.#moved())
  }

  #learn(): Learning {
    return new Learning({
      app: this.#app,
      testBed: this.#cluster.testBed,
      modes: this.#options.modes,
      mode: () => this.#switch.mode,
      addressOf: (target) => this.#selection.knownAddress(target),
      pods: () => this.#shown.view.pods,
      isWritten: () => this.#shown.view.pending === '',
      facts: () => this.#shown.facts(this.#switch),
      refresh: () => this.#refresh(),
      perform: (command) => this.perform(command),
      traffic: () => this.#traffic,
      replicas: firstReplicas,
      signal: this.#stop.signal,
    })
  }

  #obey(): Commands {
    return new Commands({
      ...{ app: this.#app, yaml: this.#yaml, marks: this.#marks, selection: this.#selection },
      ...{ shown: this.#shown, modeSwitch: this.#switch, traffic: this.#traffic },
      learning: this.#learning,
      use: (mode) => this.#use(mode),
      refresh: () => this.#refresh(),
    })
  }

  #refresh(): void {
    this.#shown.refresh(this.#switch)
    this.#moved()
  }

  /** Checks the lesson and reads the counters after a change. */
  #moved(): void {
    this.#learning.lessons.look(this.#shown.facts(this.#switch))
    this.#counterReader.refresh({
      mode: this.#switch.mode,
      service: this.#selection.service().name,
      path: this.#shown.view.path,
      addresses: this.#selection.targets().map(({ address }) => address),
      node: this.#cluster.testBed.layout.addresses.node,
    })
    this.#tell()
  }

  #tell(): void {
    for (const listener of this.#listeners) listener()
  }
}

const refreshMs = 50
