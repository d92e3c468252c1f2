import { iptablesPlanner, offlineFacts, type IptablesPlan } from './plan.js'
import { iptablesSettings } from './settings.js'
import { renderChanges, renderPlan } from './render.js'
import type { Config } from '../../config/config.js'
import type { PlanReader } from '../mode.js'

/** Plans without a kernel, as for a usual one. */
export function iptablesReader(config: Config): PlanReader<IptablesPlan> {
  return {
    plan: iptablesPlanner({ ...iptablesSettings(config), ...offlineFacts }),
    render: renderPlan,
    renderChanges,
    parts: ({ services }) => services,
    only: (plan, keys) => ({ ...plan, services: plan.services.pick(keys) }),
  }
}
