import { ipvsPlanner, onlyOf, type IpvsPlan } from './plan.js'
import { ipvsSettings, type IpvsSettings } from './settings.js'
import { renderChanges, renderPlan } from './render.js'
import type { Config } from '../../config/config.js'
import type { PlanReader } from '../mode.js'

export function ipvsReader(config: Config): PlanReader<IpvsPlan> {
  return readerOf(ipvsSettings(config))
}

export function readerOf(settings: IpvsSettings): PlanReader<IpvsPlan> {
  const plan = ipvsPlanner(settings)
  return { plan, render: renderPlan, renderChanges, parts: ({ parts }) => parts, only: onlyOf }
}
