import { setTimeout as delay } from 'node:timers/promises'
import { LiveStage } from '../../../lib/lab/playground/live-stage.js'
import { Scene } from '../../../lib/lab/playground/scene.js'
import type { ModeName } from '../../../lib/modes/registry.js'
import type { LogEntry, PageCommand, View } from '../../../lib/page/view.js'

/** A stage that a test plays on, as the page would. */
export interface Player {
  readonly scene: Scene
  readonly stage: LiveStage
  do(...commands: PageCommand[]): Promise<void>
  /** Waits for what the page would show. */
  see(what: string, condition: (view: View) => boolean): Promise<View>
  /** Sends, and gives what was logged of it, oldest first. */
  send(count?: 1 | 100): Promise<readonly LogEntry[]>
}

export async function withPlayer(
  name: string,
  modes: readonly [ModeName, ...ModeName[]],
  play: (player: Player) => Promise<void>,
): Promise<void> {
  const scene = await Scene.create(name)
  const stop = new AbortController()
  const stage = new LiveStage(scene, { modes, where: 'in a test' })
  const running = stage.run(stop.signal)
  const see: Player['see'] = async (what, condition) => {
    const deadline = Date.now() + patienceMs
    while (Date.now() < deadline) {
      const view = stage.view()
      if (condition(view)) return view
      await delay(20)
    }
    throw new Error(`waited in vain: ${what}\n${JSON.stringify(stage.view(), undefined, 1)}`)
  }
  const act: Player['do'] = async (...commands) => {
    for (const command of commands) await stage.perform(command)
  }
  const send: Player['send'] = async (count = 1) => {
    const before = stage.view().asked
    await stage.perform({ do: 'send', count })
    return stage
      .view()
      .log.filter(({ number }) => number > before)
      .reverse()
  }
  try {
    const play1 = see('the daemon is ready', ({ busy }) => busy === '').then(() =>
      play({ scene, stage, do: act, see, send }),
    )
    await Promise.race([play1, running.then(() => play1)])
  } finally {
    stop.abort()
    await running
    await scene.close()
  }
}

/** A machine under load is slow, and waiting costs nothing on others. */
const patienceMs = 60_000

export function readyPods(view: View): readonly string[] {
  return view.pods.filter(({ state }) => state === 'ready').map(({ name }) => name)
}

export function hasReady(count: number): (view: View) => boolean {
  return (view) => readyPods(view).length === count && view.pods.length === count
}
