import type { DesiredState } from '../../state/desired-state.js'
import { FailingNow } from './failing-now.js'
import { Comparison } from './comparison.js'
import type { ClusterFacts } from './lesson-progress.js'
import type { LiveCluster } from './test-bed.js'
import type { ModeSwitch } from './mode-switch.js'
import type { Programmed } from './programmed.js'
import { appliedPath, isSameServices, markedPods, onlyService, stateOf } from './rules-view.js'
import type { Selection } from './selection.js'
import { ShownRules } from './shown-rules.js'
import type { WebApp } from './web-app.js'
import type { ModeName } from '../../config/config.js'
import type { PathView, PodView } from '../../page/view.js'

interface ShownServiceDeps {
  readonly cluster: LiveCluster
  readonly app: WebApp
  readonly selection: Selection
  readonly programmed: Programmed
  /** There is something new to show. */
  readonly changed: () => void
}

/**
 * What the page shows of the selected Service: its pods, its rules, the path of a connection, and
 * whether the kernel has all of it.
 */
export class ShownService {
  readonly rules: ShownRules
  readonly comparison = new Comparison()
  readonly failing: FailingNow
  readonly #deps: ShownServiceDeps
  #pods: readonly PodView[] = []
  #path: PathView = { shared: [], ways: [], note: 'Starting.' }
  #pending = ''

  constructor(deps: ShownServiceDeps) {
    this.#deps = deps
    const { gauge } = deps.cluster.testBed
    const state = () => deps.programmed.state
    this.failing = new FailingNow({ gauge, state, changed: deps.changed })
    this.rules = new ShownRules(deps.cluster.testBed.layout)
  }

  get view() {
    return {
      pods: this.#pods,
      path: this.#path,
      pending: this.#pending,
      rules: this.rules.view,
      comparison: this.comparison.view,
    }
  }

  /** What this mode should have in the kernel. */
  wanted(mode: ModeName): DesiredState | undefined {
    const { api, testBed } = this.#deps.cluster
    return stateOf(api.registry, mode, testBed.layout, this.failing.list)
  }

  refresh({ mode, scheduler, busy }: Pick<ModeSwitch, 'mode' | 'scheduler' | 'busy'>): void {
    const { cluster, app, selection, programmed } = this.#deps
    const { layout } = cluster.testBed
    const { name } = selection.service()
    const wanted = this.wanted(mode)
    if (wanted) programmed.want(wanted)
    const should = wanted && onlyService(wanted, name)
    const has = programmed.state && onlyService(programmed.state, name)
    this.#pods = markedPods(app.pods(), has, should)
    const podAt = (ip: string) => this.#pods.find((pod) => pod.ip === ip)?.name
    this.#pending = isSameServices(has, should) ? '' : 'the kernel does not have this yet'
    const connection = { layout, scheduler, ...selection.request(mode), podAt }
    this.#path = appliedPath(mode, { has, should, name }, connection)
    // Another mode has nothing in the kernel, so the rules that it would write are shown.
    const stateIn = (of: ModeName) => (of === mode ? programmed.state : this.wanted(of))
    const shown = stateIn(this.rules.view.mode)
    this.rules.refresh(shown && onlyService(shown, name), scheduler, podAt, busy === '')
    this.comparison.refresh({ running: mode, stateIn, service: name, connection })
  }

  /** The facts that show whether tasks of a lesson are done. */
  facts({ mode, scheduler }: Pick<ModeSwitch, 'mode' | 'scheduler'>): ClusterFacts {
    return {
      mode,
      scheduler,
      service: this.#deps.selection.service(),
      pods: this.#pods,
      replicas: this.#deps.app.replicas(),
      rulesMode: this.rules.view.mode,
      rules: this.rules.texts(),
    }
  }
}
