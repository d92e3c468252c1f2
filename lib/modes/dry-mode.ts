import type { Mode, ModeDefinition, ModeSettings } from './mode.js'

/** Plans like the mode, and shows what it would do instead of doing it. */
export function dryMode(
  definition: ModeDefinition,
  settings: ModeSettings,
  print: (text: string) => void,
): Mode {
  const planner = definition.planner(settings)
  return {
    name: definition.name,
    plan: (state) => planner.plan(state),
    render: (plan) => planner.render(plan),
    renderChanges: (plan, previous) => planner.renderChanges(plan, previous),
    apply: (plan, previous) => {
      const text = planner.renderChanges(plan, previous)
      print(text)
      const bytes = Buffer.byteLength(text)
      return Promise.resolve({ full: previous === undefined, bytes, objects: 0, failed: [] })
    },
    run: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
}
