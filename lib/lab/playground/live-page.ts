import { LiveStage } from './live-stage.js'
import { PageServer } from '../../page/server.js'
import { Scene } from './scene.js'
import type { LayGround } from './ground.js'
import type { ModeName } from '../../modes/registry.js'

export interface LivePageOptions {
  /** Modes that can run here; the page starts in the first. */
  readonly modes: readonly [ModeName, ...ModeName[]]
  /** How the scene came to its rights, for the line under the title. */
  readonly where: string
  /** What to build the scene of; network namespaces unless told otherwise. */
  readonly lay?: LayGround
  /** 0 lets the system choose; one that is taken makes way for the next. */
  readonly port: number
  /** Called once the page can be opened. */
  readonly opened: (page: { readonly url: string; readonly kubeconfig: string }) => void
}

/** A scene of its own with the page over it, until the signal; leaves nothing behind. */
export async function runLivePage(options: LivePageOptions, signal: AbortSignal): Promise<void> {
  const scene = await Scene.create('page', options.lay)
  try {
    const stage = new LiveStage(scene, options)
    const page = await PageServer.listen(stage, options.port)
    try {
      options.opened({ url: page.url, kubeconfig: scene.kubeconfig })
      await stage.run(signal)
    } finally {
      await page.close()
    }
  } finally {
    await scene.close()
  }
}
