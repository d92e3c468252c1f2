import { messageOf } from '../errors.js'
import { modeLoaders } from './registry.js'
import type { ModeContext, ModeName } from './mode.js'
import type { ModeLoaders } from './choose.js'

/** iptables and ipvs keep chains of the same names, each writes them anew; neither may clean them. */
const sharesChainsWith: Readonly<Partial<Record<ModeName, ModeName>>> = {
  iptables: 'ipvs',
  ipvs: 'iptables',
}

/**
 * Removes what an earlier run in another mode left (L16). Unlike upstream this happens once the
 * rules of the present mode are in force, so that a switch leaves no gap. Rules that would send
 * packets to listeners that died with their process are why it must not wait any longer.
 */
export async function cleanLeftovers(
  current: ModeName,
  context: ModeContext,
  loaders: ModeLoaders = modeLoaders,
): Promise<void> {
  for (const load of Object.values(loaders)) {
    const definition = await load()
    if (definition.name === current || definition.name === sharesChainsWith[current]) continue
    try {
      await definition.cleanup(context)
    } catch (error) {
      const fields = { mode: definition.name, error: messageOf(error) }
      context.log.warn(fields, 'what an earlier run in this mode left could not be removed')
    }
  }
}
