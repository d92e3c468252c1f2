import { changedLines } from '../playground/changed-lines.js'
import { ConfigError } from '../errors.js'
import { explainRules } from '../playground/words/explain-rules.js'
import { liveView, selectedService, type Selection } from './live-view.js'
import { ownLines } from '../playground/rules-view.js'
import { PersistentMap } from '../state/persistent-map.js'
import type { AnswerCount, PageCommand, RulesView, View } from '../playground/view.js'
import type { DesiredState } from '../state/desired-state.js'
import type { ModeName, ModeSettings, Planner } from '../modes/mode.js'
import type { Stage } from '../playground/page-server.js'

export interface DashboardDeps {
  readonly mode: ModeName
  readonly settings: ModeSettings
  readonly nodeName: string
  readonly planner: Planner
  /** Connections so far, by endpoint of a service port. */
  readonly count: (state: DesiredState, service: string) => Promise<readonly AnswerCount[]>
}

/** What the page shows of a daemon that runs. Choosing what to look at is all it can be told. */
export class DashboardStage implements Stage {
  readonly #deps: DashboardDeps
  readonly #listeners = new Set<() => void>()
  #selection: Selection = { service: '', sender: 'client-pod', target: 'ClusterIP' }
  #state: DesiredState | undefined
  #answers: readonly AnswerCount[] = []
  #rules: RulesView
  #before: { readonly service: string; readonly lines: readonly string[] } | undefined
  #view: View | undefined

  constructor(deps: DashboardDeps) {
    this.#deps = deps
    this.#rules = { mode: deps.mode, modes: [deps.mode], lines: [], lastChange: '' }
  }

  /** The objects have changed. Costs next to nothing while nobody looks. */
  changed(state: DesiredState | undefined): void {
    this.#state = state
    this.#tell()
  }

  view(): View {
    if (this.#view) return this.#view
    const { mode, settings, nodeName } = this.#deps
    this.#refreshRules()
    this.#view = liveView({
      ...{ mode, settings, nodeName, state: this.#state, selection: this.#selection },
      ...{ rules: this.#rules, answers: this.#answers },
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
      default:
        return Promise.reject(new ConfigError('this page only shows; use kubectl to change'))
    }
    this.#tell()
    return Promise.resolve()
  }

  /** Counts while somebody looks. */
  async count(): Promise<void> {
    const service = selectedService(this.#state, this.#selection.service)
    if (this.#listeners.size === 0 || !this.#state || !service) return
    const answers = await this.#deps.count(this.#state, service.key)
    if (JSON.stringify(answers) === JSON.stringify(this.#answers)) return
    this.#answers = answers
    this.#tell()
  }

  #refreshRules(): void {
    const { mode, planner } = this.#deps
    const service = selectedService(this.#state, this.#selection.service)
    if (!this.#state || !service) return
    const only = { ...this.#state, services: PersistentMap.from([[service.key, service]]) }
    const lines = ownLines(planner, only)
    const before = this.#before?.service === service.key ? this.#before.lines : lines
    if (this.#before?.service === service.key && lines.join('\n') === before.join('\n')) return
    this.#before = { service: service.key, lines }
    const changed = changedLines(before, lines)
    const texts = changed.map(({ text }) => text)
    const words = explainRules(mode, texts, { podAt: (ip) => ip })
    this.#rules = {
      ...this.#rules,
      lines: changed.map((line, index) => ({
        ...line,
        words: words[index]?.words ?? '',
        object: words[index]?.object ?? '',
      })),
    }
  }

  #tell(): void {
    this.#view = undefined
    for (const listener of this.#listeners) listener()
  }
}
