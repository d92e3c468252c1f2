import { checkBindAddress, userspacePlanner, type UserspacePlan } from './plan.js'
import { renderPlan, renderPlanChanges } from './render.js'
import { userspaceSettings } from './settings.js'
import type { Config } from '../../config/config.js'
import type { PlanReader } from '../mode.js'

export function userspaceReader(config: Config): PlanReader<UserspacePlan> {
  const settings = userspaceSettings(config)
  if (settings.portals !== 'addresses') checkBindAddress(settings.bindAddress)
  return {
    plan: userspacePlanner(settings),
    render: (plan) => renderPlan(plan, settings),
    renderChanges: (plan, previous) => renderPlanChanges(plan, previous, settings),
    parts: ({ services }) => services,
    only: (plan, keys) => ({ ...plan, services: plan.services.pick(keys) }),
  }
}
