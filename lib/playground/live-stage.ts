import { setTimeout as delay } from 'node:timers/promises'
import { addressOf } from '../world/topology.js'
import { changedLines } from './changed-lines.js'
import { ConfigError, KernelError, messageOf } from '../errors.js'
import { pathOf, rulesOf, stateOf } from './rules-view.js'
import { Traffic } from './traffic.js'
import { WebApp } from './web-app.js'
import type { ModeName } from '../modes/mode.js'
import type { PageCommand, PathView, RuleLine, Sender, TargetView, View } from './view.js'
import type { Scene } from './scene.js'
import type { Stage } from './page-server.js'

const watched = ['services', 'endpointslices.discovery.k8s.io', 'pods', 'deployments.apps'] as const
const firstReplicas = 3

/** A scene that a page shows and steers: one Service, one sender, one target at a time. */
export class LiveStage implements Stage {
  readonly #scene: Scene
  readonly #modes: readonly ModeName[]
  readonly #app: WebApp
  readonly #traffic: Traffic
  readonly #listeners = new Set<() => void>()
  readonly #stop = new AbortController()
  #mode: ModeName
  #busy = 'starting'
  #sender: Sender = 'client-pod'
  #target: TargetView['name'] = 'ClusterIP'
  #rules: readonly string[] = []
  #rulesMode: ModeName | undefined
  #shownRules: readonly RuleLine[] = []
  #path: PathView = { shared: [], ways: [], note: 'Starting.' }
  #lastChange = ''
  #kubectl = 'kubectl get pods,services,endpointslices -o wide'

  constructor(scene: Scene, modes: readonly [ModeName, ...ModeName[]]) {
    this.#scene = scene
    this.#modes = modes
    this.#mode = modes[0]
    this.#app = new WebApp(scene.api.registry)
    this.#traffic = new Traffic(scene.world, () => this.#tell())
  }

  /** Lives until the signal; the page may be served all the while. */
  async run(signal: AbortSignal): Promise<void> {
    signal.addEventListener('abort', () => this.#stop.abort(), { once: true })
    this.#app.create(firstReplicas)
    const { store } = this.#scene.api.registry
    let isStale = true
    const subscriptions = watched.map((name) => store.subscribe(name, () => (isStale = true)))
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
        await delay(refreshMs, undefined, { signal }).catch(() => undefined)
      }
    } finally {
      for (const unsubscribe of subscriptions) unsubscribe()
      this.#stop.abort()
      await this.#traffic.close()
    }
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  view(): View {
    const service = this.#service()
    const { answers, asked, log, isContinuous } = this.#traffic
    return {
      mode: this.#mode,
      modes: this.#modes,
      busy: this.#busy,
      service,
      pods: this.#app.pods(),
      replicas: this.#app.replicas(),
      sender: this.#sender,
      target: this.#targetNow(),
      targets: this.#targets(),
      path: this.#path,
      continuous: isContinuous,
      answers: [...answers].map(([name, count]) => ({ name, count })),
      asked,
      log,
      rules: this.#shownRules,
      lastChange: this.#lastChange,
      kubectl: this.#kubectl,
      kubeconfig: this.#scene.kubeconfig,
    }
  }

  async perform(command: PageCommand): Promise<void> {
    switch (command.do) {
      case 'mode': {
        const mode = this.#modes.find((name) => name === command.mode)
        if (!mode) throw new ConfigError(`use mode ${command.mode}: this kernel cannot run it`)
        if (this.#busy !== '') throw new ConfigError(`use mode ${mode}: wait, ${this.#busy}`)
        return this.#useMode(mode)
      }
      case 'replicas':
        this.#app.scale(command.count)
        this.#did(`scale deployment web --replicas=${command.count}`)
        break
      case 'kill':
        this.#app.kill(command.pod)
        this.#did(`delete pod ${command.pod} --wait=false`)
        break
      case 'affinity':
        this.#app.setAffinity(command.on)
        this.#patched({ sessionAffinity: command.on ? 'ClientIP' : 'None' })
        break
      case 'policy':
        this.#app.setPolicy(command.side, command.value)
        this.#patched({ [`${command.side}TrafficPolicy`]: command.value })
        break
      case 'sender':
        this.#sender = command.sender
        return this.#refresh()
      case 'target':
        this.#target = command.target
        return this.#refresh()
      case 'send':
        return this.#traffic.send(command.count, () => this.#connection())
      case 'continuous':
        this.#traffic.setContinuous(command.on, () => this.#connection())
        break
      case 'clear':
        this.#traffic.clear()
    }
    this.#tell()
  }

  async #useMode(mode: ModeName): Promise<void> {
    this.#busy = `switching to ${mode}`
    this.#tell()
    try {
      await this.#scene.useMode(mode)
      this.#mode = mode
      await this.#refresh()
      await this.#untilReady()
    } catch (error) {
      throw new KernelError('failed', `use mode ${mode}: ${messageOf(error)}`, { cause: error })
    } finally {
      this.#busy = ''
      this.#tell()
    }
  }

  /** Rules of the last mode may still answer, so only the daemon can tell. */
  async #untilReady(): Promise<void> {
    const argv = [process.execPath, '--input-type=module', '-e', askReady]
    const { code } = await this.#scene.world.exec('node', argv, {
      signal: this.#stop.signal,
      timeoutMs: 60_000,
    })
    if (code !== 0) throw new KernelError('failed', 'start the daemon: it did not get ready')
  }

  #did(words: string): void {
    this.#lastChange = words
    this.#kubectl = `kubectl ${words}`
  }

  #patched(spec: Readonly<Record<string, string>>): void {
    this.#did(`patch service web -p '${JSON.stringify({ spec })}'`)
  }

  async #refresh(): Promise<void> {
    const mode = this.#mode
    const state = stateOf(this.#scene.api.registry, mode)
    const service = [...(state?.services.values() ?? [])].find(
      ({ name }) => name.namespace === 'default' && name.name === 'web',
    )
    if (!state || !service) {
      this.#path = { shared: [], ways: [], note: 'There is no Service default/web.' }
      this.#shownRules = []
    } else {
      const pods = this.#app.pods()
      const podAt = (ip: string) => pods.find((pod) => pod.ip === ip)?.name
      this.#path = pathOf(state, mode, { ...this.#connection(), podAt })
      this.#showRules(mode, await rulesOf(state, mode, service))
    }
    this.#tell()
  }

  #showRules(mode: ModeName, rules: readonly string[]): void {
    const isSame = rules.join('\n') === this.#rules.join('\n')
    if (this.#rulesMode === mode && isSame) return
    const previous = this.#rulesMode === mode ? this.#rules : rules
    this.#shownRules = changedLines(previous, rules)
    this.#rules = rules
    this.#rulesMode = mode
  }

  #service(): View['service'] {
    return this.#app.service() ?? noService
  }

  #connection() {
    const { clusterIp, port, nodePort } = this.#service()
    const isOutside = this.#target === 'NodePort'
    return {
      mode: this.#mode,
      sender: this.#sender,
      destination: isOutside ? addressOf('node', 'IPv4') : clusterIp,
      port: isOutside ? nodePort : port,
    }
  }

  #targets(): readonly TargetView[] {
    const { clusterIp, port, nodePort } = this.#service()
    return [
      { name: 'ClusterIP', address: `${clusterIp}:${port}` },
      { name: 'NodePort', address: `${addressOf('node', 'IPv4')}:${nodePort}` },
    ]
  }

  #targetNow(): TargetView {
    const { destination, port } = this.#connection()
    return { name: this.#target, address: `${destination}:${port}` }
  }

  #tell(): void {
    for (const listener of this.#listeners) listener()
  }
}

const refreshMs = 50

const noService: View['service'] = {
  name: 'default/web',
  clusterIp: '',
  port: 0,
  nodePort: 0,
  affinity: false,
  internalPolicy: 'Cluster',
  externalPolicy: 'Cluster',
}

/** Runs inside the node's namespace, where the daemon's health server listens. */
const askReady = `
const ask = () => fetch('http://127.0.0.1:10256/readyz').then(({ ok }) => ok, () => false)
while (!(await ask())) await new Promise((resolve) => setTimeout(resolve, 30))
process.exit(0)
`
