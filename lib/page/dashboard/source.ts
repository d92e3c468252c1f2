import { ConfigError } from '../../errors.js'
import { liveView, selected, type Selection, type Shown } from './live-view.js'
import { ownLines, RuleLines } from '../rule-lines.js'
import { PersistentMap } from '../../state/persistent-map.js'
import type { AnswerCount, PageCommand, View } from '../view.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { Config, ModeName } from '../../config/config.js'
import type { Planner } from '../../modes/mode.js'
import type { PodNames } from './pod-names.js'
import type { PageSource } from '../server.js'

export interface DashboardDeps {
  readonly mode: ModeName
  readonly config: Config
  readonly nodeName: string
  readonly planner: Planner
  readonly podNames: PodNames
  /** Connections so far, by endpoint of a service port. */
  readonly count: (state: DesiredState, service: string) => Promise<readonly AnswerCount[]>
}

/** The page of a running daemon. Its commands only select what to show. */
export class DashboardSource implements PageSource {
  readonly #deps: DashboardDeps
  readonly #listeners = new Set<() => void>()
  #selection: Selection = {
    service: '',
    sender: 'client-pod',
    target: 'ClusterIP',
    family: 'IPv4',
  }
  #states: readonly DesiredState[] = []
  #answers: readonly AnswerCount[] = []
  readonly #rules = new RuleLines()
  #view: View | undefined

  constructor(deps: DashboardDeps) {
    this.#deps = deps
  }

  /** The objects have changed. Does almost nothing while no page is open. */
  changed(states: readonly DesiredState[]): void {
    this.#states = states
    this.#tell()
  }

  view(): View {
    if (this.#view) return this.#view
    const { mode, config, nodeName } = this.#deps
    const shown = selected(this.#states, this.#selection)
    const podNames = shown ? this.#namesOf(shown) : new Map<string, string>()
    if (shown) this.#showRules(shown, podNames)
    const rules = { mode, modes: [mode], lines: this.#rules.lines, lastChange: '' }
    this.#view = liveView({
      ...{ mode, config, nodeName, states: this.#states, selection: this.#selection },
      ...{ rules, answers: this.#answers, podNames },
    })
    return this.#view
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  perform(command: PageCommand): Promise<void> {
    switch (command.do) {
      case 'select':
        this.#selection = { ...this.#selection, service: command.service }
        this.#answers = []
        break
      case 'sender':
        this.#selection = { ...this.#selection, sender: command.sender }
        break
      case 'target':
        this.#selection = { ...this.#selection, target: command.target }
        break
      case 'family':
        this.#selection = { ...this.#selection, family: command.family }
        this.#answers = []
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
    const shown = selected(this.#states, this.#selection)
    if (!shown) return
    const answers = await this.#deps.count(shown.state, shown.service.key)
    if (JSON.stringify(answers) === JSON.stringify(this.#answers)) return
    this.#answers = answers
    this.#tell()
  }

  #namesOf({ service }: Shown): ReadonlyMap<string, string> {
    const { namespace, name } = service.name
    return this.#deps.podNames.of(`${namespace}/${name}`)
  }

  #showRules({ state, service }: Shown, podNames: ReadonlyMap<string, string>): void {
    const { mode, planner } = this.#deps
    const only = { ...state, services: PersistentMap.from([[service.key, service]]) }
    this.#rules.show({
      mode,
      of: `${state.family} ${service.key}`,
      lines: ownLines(planner, only),
      around: { podAt: (ip) => podNames.get(ip) },
      known: JSON.stringify([...podNames]),
    })
  }

  #tell(): void {
    this.#view = undefined
    for (const listener of this.#listeners) listener()
  }
}
