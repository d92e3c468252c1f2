import type { ModeDefinition, ModeName } from './mode.js'

/**
 * The one list of modes: help, `check`, the documents and the tests read it. Loading is lazy, so
 * that a node pays only for the mode it runs.
 */
export const modeLoaders: Readonly<Partial<Record<ModeName, () => Promise<ModeDefinition>>>> = {
  userspace: async () => (await import('./userspace/index.js')).definition,
  iptables: async () => (await import('./iptables/index.js')).mode,
  nftables: async () => (await import('./nftables/index.js')).mode,
  ipvs: async () => (await import('./ipvs/index.js')).mode,
}
