import { nftablesPlanner, onlyOf, type NftablesPlan, type PlanSettings } from './plan.js'
import { nftablesSettings } from './settings.js'
import { planLines, renderChanges, renderPlan } from './render.js'
import type { Config } from '../../config/config.js'
import type { PlanReader } from '../mode.js'

export function nftablesReader(config: Config): PlanReader<NftablesPlan> {
  return readerOf(nftablesSettings(config))
}

export function readerOf(settings: PlanSettings): PlanReader<NftablesPlan> {
  const plan = nftablesPlanner(settings)
  const shown = { render: renderPlan, lines: planLines, renderChanges }
  return { plan, ...shown, parts: ({ parts }) => parts, only: onlyOf }
}
