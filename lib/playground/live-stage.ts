import { setTimeout as delay } from 'node:timers/promises'
import { pause } from '../pause.js'
import { Aiming } from './aiming.js'
import { ConfigError, KernelError, messageOf } from '../errors.js'
import { Counting } from './counting.js'
import { Course } from './course.js'
import { onlyService, pathOf, stateOf } from './rules-view.js'
import { parseDaemonLine, Timeline } from './timeline.js'
import { ShownRules } from './shown-rules.js'
import { Traffic } from './traffic.js'
import { WebApp } from './web-app.js'
import { YamlObjects } from './yaml-objects.js'
import type { Circumstances } from './course.js'
import type { ModeName } from '../modes/mode.js'
import type { ObjectLine, PageCommand, PathView, PodView, View } from './view.js'
import type { Scene } from './scene.js'
import type { Stage } from './page-server.js'

const watched = ['services', 'endpointslices.discovery.k8s.io', 'pods', 'deployments.apps'] as const
const firstReplicas = 3

export interface LiveStageOptions {
  readonly modes: readonly [ModeName, ...ModeName[]]
  /** How the scene came to its rights. */
  readonly where: string
}

/** A scene that a page shows and steers: one Service, one sender, one target at a time. */
export class LiveStage implements Stage {
  readonly #scene: Scene
  readonly #options: LiveStageOptions
  readonly #app: WebApp
  readonly #yaml: YamlObjects
  readonly #traffic: Traffic
  readonly #timeline: Timeline
  readonly #course: Course
  readonly #counting: Counting
  readonly #rules = new ShownRules()
  readonly #aiming: Aiming
  readonly #listeners = new Set<() => void>()
  readonly #stop = new AbortController()
  #mode: ModeName
  #scheduler = 'rr'
  #busy = 'starting'
  #path: PathView = { shared: [], ways: [], note: 'Starting.' }
  #pods: readonly PodView[] = []
  #objects: readonly ObjectLine[] = []
  #services: View['services'] = []
  #kubectl = 'kubectl get pods,services,endpointslices -o wide'

  constructor(scene: Scene, options: LiveStageOptions) {
    this.#scene = scene
    this.#options = options
    this.#mode = options.modes[0]
    this.#app = new WebApp(scene.api.registry)
    this.#aiming = new Aiming({
      service: () => this.#app.service(),
      pods: () => this.#pods,
      placeOf: (pod) => scene.pods.placeOf(pod),
    })
    this.#yaml = new YamlObjects(scene.api)
    this.#course = new Course(options.modes)
    this.#counting = new Counting(scene.gauge, () => this.#tell())
    this.#traffic = new Traffic(scene.world, {
      changed: () => this.#moved(),
      recorded: (entry) => this.#course.recorded(entry),
    })
    this.#timeline = new Timeline({
      store: scene.api.registry.store,
      now: () => performance.timeOrigin + performance.now(),
      isIdle: () => this.#busy === '',
      reach: (pod) => this.#reach(pod),
      changed: () => this.#tell(),
    })
  }

  /** Lives until the signal; the page may be served all the while. */
  async run(signal: AbortSignal): Promise<void> {
    signal.addEventListener('abort', () => this.#stop.abort(), { once: true })
    this.#app.create(firstReplicas)
    const { store } = this.#scene.api.registry
    let isStale = true
    const subscriptions = [
      ...watched.map((name) => store.subscribe(name, () => (isStale = true))),
      this.#timeline.follow(),
    ]
    try {
      await this.#useMode(this.#mode).catch((error: unknown) => {
        // Who leaves while the daemon starts does not want to hear that it did not.
        if (!signal.aborted) throw error
      })
      while (!signal.aborted) {
        if (isStale) {
          isStale = false
          await this.#refresh()
        }
        await pause(refreshMs, signal)
      }
    } finally {
      for (const unsubscribe of subscriptions) unsubscribe()
      this.#stop.abort()
      await this.#traffic.close()
      await this.#counting.close()
    }
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  view(): View {
    const { answers, asked, log, isContinuous } = this.#traffic
    return {
      isReadOnly: false,
      where: this.#options.where,
      mode: this.#mode,
      modes: this.#options.modes,
      scheduler: this.#scheduler,
      busy: this.#busy,
      services: this.#services,
      service: this.#aiming.service(),
      pods: this.#pods,
      replicas: this.#app.replicas(),
      sender: this.#aiming.sender,
      target: this.#aiming.target(),
      targets: this.#aiming.targets(),
      path: this.#path,
      counters: this.#counting.view,
      continuous: isContinuous,
      answers: [...answers].map(([name, count]) => ({ name, count })),
      asked,
      log,
      rules: this.#rules.view,
      timeline: this.#timeline.view,
      lessons: this.#course.view,
      objects: this.#objects,
      kubectl: this.#kubectl,
      kubeconfig: this.#scene.kubeconfig,
    }
  }

  yaml(line: ObjectLine): string | undefined {
    return this.#yaml.read(line)
  }

  async perform(command: PageCommand): Promise<void> {
    switch (command.do) {
      case 'mode': {
        const mode = this.#options.modes.find((name) => name === command.mode)
        if (!mode) throw new ConfigError(`use mode ${command.mode}: this kernel cannot run it`)
        return this.#whenIdle(`use mode ${mode}`, () => this.#useMode(mode))
      }
      case 'scheduler':
        this.#scheduler = command.scheduler
        if (this.#mode !== 'ipvs') return this.#refresh()
        return this.#whenIdle(`use ${command.scheduler}`, () => this.#useMode(this.#mode))
      case 'select':
        this.#kubectl = `kubectl ${this.#app.select(command.service)}`
        return this.#refresh()
      case 'sender':
        this.#aiming.sender = command.sender
        return this.#refresh()
      case 'target':
        this.#aiming.wanted = command.target
        return this.#refresh()
      case 'rules':
        this.#rules.show(command.mode, this.#mode)
        return this.#refresh()
      case 'send':
        return this.#traffic.send(command.count, () => this.#aiming.aim(this.#mode))
      case 'continuous':
        this.#traffic.setContinuous(command.on, () => this.#aiming.aim(this.#mode))
        break
      case 'clear':
        this.#traffic.clear()
        break
      case 'lesson':
        this.#course.begin(command.id, this.#circumstances())
        break
      default:
        this.#did(await this.#change(command))
    }
    this.#tell()
  }

  /** What goes through the API server; to the words behind `kubectl` that do the same. */
  #change(command: ChangeCommand): string | Promise<string> {
    switch (command.do) {
      case 'replicas':
        return this.#app.scale(command.count)
      case 'pod':
        return this.#app.act(command.pod, command.action)
      case 'affinity':
        return this.#app.setAffinity(command.on)
      case 'policy':
        return this.#app.setPolicy(command.side, command.value)
      case 'type':
        return this.#app.setType(command.type)
      case 'ranges':
        return this.#app.setSourceRanges(command.ranges)
      case 'apply':
        return this.#yaml.apply(command.yaml)
    }
  }

  async #whenIdle(what: string, act: () => Promise<void>): Promise<void> {
    if (this.#busy !== '') throw new ConfigError(`${what}: wait, ${this.#busy}`)
    return act()
  }

  async #useMode(mode: ModeName): Promise<void> {
    this.#busy = `switching to ${mode}`
    this.#tell()
    try {
      await this.#scene.useMode(mode, {
        scheduler: this.#scheduler,
        onLine: (text) => {
          const line = parseDaemonLine(text)
          if (line) this.#timeline.daemonSaid(line)
        },
      })
      this.#mode = mode
      this.#rules.show(mode, mode)
      await this.#refresh()
      await this.#untilReady()
    } catch (error) {
      throw new KernelError('failed', `use mode ${mode}: ${messageOf(error)}`, { cause: error })
    } finally {
      this.#busy = ''
      this.#moved()
    }
  }

  /** Rules of the last mode may still answer, so only the daemon can tell. */
  async #untilReady(): Promise<void> {
    const deadline = Date.now() + startMs
    while (Date.now() < deadline && !this.#stop.signal.aborted) {
      if ((await this.#scene.gauge.ask({ ask: 'ready' })).isReady === true) return
      await delay(askMs, undefined, { signal: this.#stop.signal })
    }
    throw new KernelError('failed', 'start the daemon: it did not get ready')
  }

  /** For the timeline: connections of its own, which are not among those that are shown. */
  async #reach(pod: string): Promise<boolean> {
    const deadline = Date.now() + reachMs
    const { protocol } = this.#aiming.service()
    const { destination: host, port } = this.#aiming.addressOf('ClusterIP')
    while (Date.now() < deadline && !this.#stop.signal.aborted) {
      const agent = this.#scene.world.agent('client-pod')
      const [result] = await agent.flow({ protocol, host, port, timeoutMs: 200 })
      if (result?.backend === pod) return true
    }
    return false
  }

  #did(words: string): void {
    this.#rules.because(words)
    this.#kubectl = `kubectl ${words}`
  }

  async #refresh(): Promise<void> {
    const mode = this.#mode
    this.#pods = this.#app.pods()
    this.#objects = this.#yaml.list()
    this.#services = this.#app.services()
    const service = this.#aiming.service()
    const podAt = (ip: string) => this.#pods.find((pod) => pod.ip === ip)?.name
    const own = (of: ModeName) => {
      const state = stateOf(this.#scene.api.registry, of)
      return state && onlyService(state, service.name)
    }
    const state = own(mode)
    if (!state || state.services.size === 0) {
      this.#path = { shared: [], ways: [], note: `There is no Service ${service.name}.` }
    } else {
      this.#path = pathOf(state, mode, { ...this.#aiming.aim(mode), podAt })
    }
    await this.#rules.refresh(own(this.#rules.view.mode), this.#scheduler, podAt, this.#busy === '')
    this.#moved()
  }

  /** Something that a lesson waits for, or that counts, may have happened. */
  #moved(): void {
    this.#course.look(this.#circumstances())
    this.#counting.refresh({
      mode: this.#mode,
      service: this.#aiming.service().name,
      path: this.#path,
      addresses: this.#aiming.targets().map(({ address }) => address),
    })
    this.#tell()
  }

  #circumstances(): Circumstances {
    return {
      mode: this.#mode,
      scheduler: this.#scheduler,
      service: this.#aiming.service(),
      pods: this.#pods,
      replicas: this.#app.replicas(),
      rulesMode: this.#rules.view.mode,
      rules: this.#rules.view.lines.flatMap(({ text, change }) =>
        change === 'removed' ? [] : [text],
      ),
    }
  }

  #tell(): void {
    for (const listener of this.#listeners) listener()
  }
}

type ChangeCommand = Extract<
  PageCommand,
  { readonly do: 'replicas' | 'pod' | 'affinity' | 'policy' | 'type' | 'ranges' | 'apply' }
>

const refreshMs = 50
const askMs = 30
const startMs = 60_000
const reachMs = 3000
