import type { Config } from '../config/config.js'
import { forgetAll, knownByFamily } from './known.js'
import type { FamilyPlan, Mode, ModeDefinition } from './mode.js'

/** Plans like the mode, but prints what the mode would write to the kernel. */
export function dryMode(
  definition: ModeDefinition,
  config: Config,
  print: (text: string) => void,
): Mode {
  let planner = definition.planner(config)
  const known = knownByFamily<FamilyPlan>()
  return {
    plan: (state) => planner.plan(state),
    render: (plan) => planner.render(plan),
    renderChanges: (plan, previous) => planner.renderChanges(plan, previous),
    apply: (plan) =>
      known[plan.family].update((previous) => {
        const text = planner.renderChanges(plan, previous)
        print(text)
        const bytes = Buffer.byteLength(text)
        const result = { full: previous === undefined, bytes, objects: 0, failed: [] }
        return Promise.resolve({ now: plan, result })
      }),
    forget: () => forgetAll(known),
    reconfigure: (next) => {
      planner = definition.planner(next)
      return true
    },
    run: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
}
