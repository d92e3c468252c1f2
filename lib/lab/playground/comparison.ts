import { ConfigError } from '../../errors.js'
import { costsOf } from './costs.js'
import { onlyService, waysOf, type Connection } from './rules-view.js'
import { noPath, pathView } from '../../page/path-view.js'
import type { HopView, PathView, SideView } from '../../page/view.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { ModeName } from '../../config/config.js'
import { allModes } from './mode-switch.js'

interface Compared {
  readonly running: ModeName
  /** The state that the kernel has in the mode that runs, or would have in another mode. */
  readonly stateIn: (mode: ModeName) => DesiredState | undefined
  readonly service: string
  readonly connection: Connection
}

/** The same connection in two modes: the way through each, and what it costs. */
export class Comparison {
  #modes: readonly ModeName[] = []
  #view: readonly SideView[] = []

  get view(): readonly SideView[] {
    return this.#view
  }

  /** Compares these two modes from the next `refresh` on; without names, none. */
  show(names: readonly string[]): void {
    const modes = names.flatMap((name) => allModes.find((mode) => mode === name) ?? [])
    if (modes.length !== names.length || (modes.length !== 2 && modes.length !== 0)) {
      throw new ConfigError(`compare ${names.join(' and ')}: name two of ${allModes.join(', ')}`)
    }
    this.#modes = modes
  }

  refresh(compared: Compared): void {
    this.#view = this.#modes.map((mode) => sideOf(mode, compared))
  }
}

function sideOf(mode: ModeName, { running, stateIn, service, connection }: Compared): SideView {
  const isRunning = mode === running
  const side = { mode, isRunning, costs: [] }
  if (connection.room === undefined)
    return { ...side, path: noPath('There is no pod to send from.') }
  const state = stateIn(mode)
  const alone = state && onlyService(state, service)
  if (!state || !alone?.services.size)
    return { ...side, path: noPath(`There is no Service ${service}, or not yet.`) }
  const ways = waysOf(state, mode, connection)
  const path = pathView(ways, connection.podAt)
  return {
    ...side,
    path: isRunning ? path : uncounted(path),
    costs: costsOf(connection.protocol, ways, waysOf(alone, mode, connection)),
  }
}

/** Removes counters: the kernel counts only for the mode that runs, also if texts are the same. */
function uncounted({ shared, ways, note }: PathView): PathView {
  const without = (hops: readonly HopView[]) => hops.map((hop) => ({ ...hop, counter: '' }))
  return {
    note,
    shared: without(shared),
    ways: ways.map((way) => ({ ...way, hops: without(way.hops) })),
  }
}
