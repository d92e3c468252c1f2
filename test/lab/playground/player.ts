import { LivePlayground } from '../../../lib/lab/playground/live-playground.js'
import { chooseMode } from '../../../lib/modes/choose.js'
import { contextOf } from '../../support/mode-context.js'
import { Cluster } from '../../../lib/lab/playground/cluster.js'
import type { ModeName } from '../../../lib/config/config.js'
import type { PageCommand } from '../../../lib/page/page-command.js'
import type { LogEntry } from '../../../lib/page/view.js'
import type { PageView } from '../../../lib/page/readers.js'
import { nodeTestBed } from './node-test-bed.js'
import { until } from '../../support/until.js'

/** Ebpf mode, or nothing if it cannot run here. */
export const ebpfHere: readonly ModeName[] = await chooseMode(
  { mode: 'ebpf', fallback: 'none' },
  contextOf().context.log,
).then(
  () => ['ebpf'],
  () => [],
)

/** A playground for tests, which use it as the page does. */
export interface Player {
  readonly cluster: Cluster
  readonly playground: LivePlayground
  do(...commands: PageCommand[]): Promise<void>
  /** Waits until the page would show this. */
  see(what: string, condition: (view: PageView) => boolean): Promise<PageView>
  /** Sends requests, and returns their log lines, oldest first. */
  send(count?: 1 | 100): Promise<readonly LogEntry[]>
}

export async function withPlayer(
  name: string,
  modes: readonly [ModeName, ...ModeName[]],
  play: (player: Player) => Promise<void>,
): Promise<void> {
  const cluster = await Cluster.create(name, nodeTestBed(modes))
  const stop = new AbortController()
  const playground = new LivePlayground(cluster, { modes, where: 'in a test' })
  const running = playground.run(stop.signal)
  const see: Player['see'] = async (what, condition) => {
    let view = playground.view()
    const told = () => `${what}\n${JSON.stringify(view, undefined, 1)}`
    await until(told, () => condition((view = playground.view())), 20)
    return view
  }
  const act: Player['do'] = async (...commands) => {
    for (const command of commands) await playground.perform(command)
  }
  const send: Player['send'] = async (count = 1) => {
    const before = playground.view().asked
    await playground.perform({ do: 'send', count })
    return playground
      .view()
      .log.filter(({ number }) => number > before)
      .reverse()
  }
  try {
    const play1 = see('the daemon is ready', ({ busy }) => busy === '').then(() =>
      play({ cluster, playground, do: act, see, send }),
    )
    await Promise.race([play1, running.then(() => play1)])
  } finally {
    stop.abort()
    await running
    await cluster.close()
  }
}

export function readyPods(view: Pick<PageView, 'pods'>): readonly string[] {
  return view.pods.filter(({ state }) => state === 'ready').map(({ name }) => name)
}

export function hasReady(count: number): (view: Pick<PageView, 'pods'>) => boolean {
  return (view) => readyPods(view).length === count && view.pods.length === count
}
