import { LivePlayground } from './live-playground.js'
import { PageServer } from '../../page/server.js'
import { Cluster } from './cluster.js'
import type { BuildTestBed } from './test-bed.js'
import type { ModeName } from '../../modes/registry.js'

export interface LivePageOptions {
  /** Modes that can run here; the page starts in the first. */
  readonly modes: readonly [ModeName, ...ModeName[]]
  /** How the cluster came to its rights, for the line under the title. */
  readonly where: string
  /** What to build the cluster of; network namespaces unless told otherwise. */
  readonly buildTestBed?: BuildTestBed
  /** 0 lets the system choose; one that is taken makes way for the next. */
  readonly port: number
  /** Called once the page can be opened. */
  readonly opened: (page: { readonly url: string; readonly kubeconfig: string }) => void
}

/** A cluster of its own with the page over it, until the signal; leaves nothing behind. */
export async function runLivePage(options: LivePageOptions, signal: AbortSignal): Promise<void> {
  const cluster = await Cluster.create('page', options.buildTestBed)
  try {
    const playground = new LivePlayground(cluster, options)
    const page = await PageServer.listen(playground, options.port)
    try {
      options.opened({ url: page.url, kubeconfig: cluster.kubeconfig })
      await playground.run(signal)
    } finally {
      await page.close()
    }
  } finally {
    await cluster.close()
  }
}
