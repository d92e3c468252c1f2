import { ebpfPlanner, onlyOf, type EbpfPlan } from './plan.js'
import { ebpfSettings, type EbpfSettings } from './settings.js'
import { renderSocketChanges, renderSockets } from './render.js'
import type { Config } from '../../config/config.js'
import type { Planner, PlanReader } from '../mode.js'

export function ebpfReader(config: Config, packets: PlanReader): PlanReader<EbpfPlan> {
  return {
    ...plannerOf(ebpfSettings(config), packets),
    // Every change of a service port's part for sockets also changes its part for packets.
    parts: (plan) => packets.parts(plan.packets),
    only: (plan, keys) => ({
      ...plan,
      packets: packets.only(plan.packets, keys),
      sockets: onlyOf(plan.sockets, keys),
    }),
  }
}

export function plannerOf(settings: EbpfSettings, packets: Planner): Planner<EbpfPlan> {
  return {
    plan: ebpfPlanner(settings, packets),
    render: (plan) => renderSockets(plan.sockets) + packets.render(plan.packets),
    renderChanges: (plan, previous) =>
      renderSocketChanges(plan.sockets, previous?.sockets) +
      packets.renderChanges(plan.packets, previous?.packets),
  }
}
