import { ConfigError } from '../../errors.js'
import { RuleLines } from '../../page/rule-lines.js'
import { rulesOf } from './rules-view.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { ModeName } from '../../config/config.js'
import type { RulesView } from '../../page/view.js'
import type { ClusterLayout } from './cluster-layout.js'
import { allModes } from './mode-switch.js'

/**
 * The rules of one Service in one mode, with the difference that the last change made. Planning
 * needs no kernel, so the rules of every mode can be shown everywhere.
 */
export class ShownRules {
  readonly #layout: ClusterLayout
  #mode: ModeName = 'iptables'
  readonly #lines = new RuleLines()
  #because = ''
  #lastChange = ''

  constructor(layout: ClusterLayout) {
    this.#layout = layout
  }

  /** The lines that hold now. */
  texts(): readonly string[] {
    return this.view.lines.flatMap(({ text, change }) => (change === 'removed' ? [] : [text]))
  }

  get view(): RulesView & { readonly mode: ModeName } {
    const { lines } = this.#lines
    return { mode: this.#mode, modes: allModes, lines, lastChange: this.#lastChange }
  }

  /** Shows the rules of this mode from now on; `active` is the one that runs. */
  show(name: string, active: ModeName): void {
    const mode = allModes.find((each) => each === name)
    if (!mode) throw new ConfigError(`show rules of ${name}: there is no mode of that name`)
    this.#mode = mode
    this.#because = mode === active ? '' : `as ${mode} mode would make them`
  }

  /** Sets the cause of the next difference, in words. */
  because(words: string): void {
    this.#because = words
  }

  /** `state` holds nothing but the Service that is shown; undefined when there is none. */
  refresh(
    state: DesiredState | undefined,
    scheduler: string,
    podAt: (ip: string) => string | undefined,
    isSettled: boolean,
  ): void {
    const mode = this.#mode
    const lines = state ? rulesOf(state, mode, { layout: this.#layout, scheduler }) : []
    const [first] = state?.services.values() ?? []
    const owner = first?.portName.split(':')[0]
    const around = owner === undefined ? { podAt } : { podAt, owner }
    const of = `${mode} ${owner ?? ''}`
    const isNew = this.#lines.show({ mode, of, lines, around, isSettled })
    if (isNew) this.#lastChange = this.#because
  }
}
