import { checkBindAddress, userspacePlanner, type UserspacePlan } from './plan.js'
import { renderPlan, renderPlanChanges } from './render.js'
import type { UserspaceSettings } from './settings.js'
import type { PlanReader } from '../mode.js'

export function userspaceReader(settings: UserspaceSettings): PlanReader<UserspacePlan> {
  if (settings.portals !== 'addresses') checkBindAddress(settings.bindAddress)
  return {
    plan: userspacePlanner(settings),
    render: (plan) => renderPlan(plan, settings),
    renderChanges: (plan, previous) => renderPlanChanges(plan, previous, settings),
    parts: ({ services }) => services,
    only: (plan, keys) => ({ ...plan, services: plan.services.pick(keys) }),
  }
}
