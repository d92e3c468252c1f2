import type { DataPath, DataPathDeps, DataPathName } from './datapath.js'

/** How each data path is made. Loading is lazy: `net` must work where koffi does not load. */
export const dataPathLoaders: Readonly<
  Record<DataPathName, () => Promise<(deps: DataPathDeps) => DataPath>>
> = {
  net: async () => (await import('./net/net-data-path.js')).createNetDataPath,
  splice: async () => (await import('./splice/splice-data-path.js')).loadSpliceDataPath(),
}
