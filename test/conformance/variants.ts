import { modeLoaders } from '../../lib/modes/registry.js'
import type { ModeDefinition, ModeName } from '../../lib/modes/mode.js'

/** A mode under test; `iptables-legacy` is iptables mode with the older of its two backends. */
export interface Variant {
  readonly mode: ModeName
  readonly load: () => Promise<ModeDefinition>
}

export function variantOf(name: string): Variant | undefined {
  if (name === 'iptables-legacy') {
    const load = async () =>
      (await import('../../lib/modes/iptables/index.js')).iptablesMode({ backend: 'legacy' })
    return { mode: 'iptables', load }
  }
  for (const [mode, load] of Object.entries(modeLoaders)) {
    if (mode === name) return { mode: mode as ModeName, load }
  }
  return undefined
}

export const variantNames: readonly string[] = [...Object.keys(modeLoaders), 'iptables-legacy']
