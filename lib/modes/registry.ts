import type { ModeName } from '../config/config.js'
import type { ModeDefinition } from './mode.js'

/**
 * The one list of modes: help, `check`, the documents and the tests read it. Loading is lazy, so
 * that a node pays only for the mode it runs.
 */
export const modeLoaders = {
  userspace: async () => (await import('./userspace/index.js')).definition,
  // This is userspace mode with addresses of a Windows interface instead of rules.
  winuserspace: async () =>
    (await import('./winuserspace/index.js')).winuserspaceMode(
      (await import('./userspace/index.js')).onAddresses,
    ),
  iptables: async () => (await import('./iptables/index.js')).mode,
  nftables: async () => (await import('./nftables/index.js')).mode,
  // ebpf mode runs nftables mode for packets, through the interface that every mode has.
  ebpf: async () =>
    (await import('./ebpf/index.js')).ebpfMode((await import('./nftables/index.js')).mode),
  ipvs: async () => (await import('./ipvs/index.js')).mode,
} satisfies Record<ModeName, () => Promise<ModeDefinition>>

export type ModeLoaders = Readonly<Partial<Record<ModeName, () => Promise<ModeDefinition>>>>

export const modeNames: readonly ModeName[] = Object.keys(modeLoaders).filter(isModeName)

export function isModeName(name: string): name is ModeName {
  return name in modeLoaders
}
