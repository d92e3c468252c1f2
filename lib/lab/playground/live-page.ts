import { LivePlayground } from './live-playground.js'
import { PageServer } from '../../page/server.js'
import { Cluster } from './cluster.js'
import type { BuildTestBed } from './test-bed.js'
import type { ModeName } from '../../config/config.js'

interface LivePageOptions {
  /** Modes that can run here; the page starts in the first. */
  readonly modes: readonly [ModeName, ...ModeName[]]
  /** Why other modes cannot run, a sentence each. */
  readonly missing?: readonly string[]
  /** With which rights the playground runs, for the line under the title. */
  readonly where: string
  /** Network namespaces when absent. */
  readonly buildTestBed?: BuildTestBed
  /** 0 lets the system choose; if it is taken, the next free one is used. */
  readonly port: number
  /** Called once the page can be opened. */
  readonly opened: (page: { readonly url: string; readonly kubeconfig: string }) => void
}

/** Runs a new cluster with its page until the signal, and leaves nothing behind. */
export async function runLivePage(options: LivePageOptions, signal: AbortSignal): Promise<void> {
  const cluster = await Cluster.create('page', options.buildTestBed)
  try {
    const limits = [...cluster.testBed.layout.limits, ...(options.missing ?? [])]
    const playground = new LivePlayground(cluster, { ...options, limits })
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
