import { once } from 'node:events'
import { watchProxy, type RunningProxy } from '../../lib/lab/playground/proxy-process.js'
import type { World } from '../../lib/lab/world/world.js'
import { program } from '../support/program.js'

interface Started {
  readonly child: ReturnType<World['spawn']>
  readonly proxy: RunningProxy
}

/** The daemon of a stage. It can start again and again, and several can run at once. */
export class Daemon {
  readonly #world: World
  readonly #command: readonly string[]
  readonly #started: Started[] = []

  /** `by` is a command that starts the command after it. */
  constructor(world: World, flags: readonly string[], by: readonly string[] = []) {
    this.#world = world
    this.#command = [...by, process.execPath, program, ...flags]
  }

  /** Starts one more daemon. */
  start(...more: readonly string[]): RunningProxy {
    const child = this.#world.spawn('node', [...this.#command, ...more])
    const proxy = watchProxy(child)
    this.#started.push({ child, proxy })
    return proxy
  }

  get latest(): RunningProxy {
    return this.#latest().proxy
  }

  get pid(): number {
    return this.#latest().child.pid ?? 0
  }

  output(): string {
    return this.#started.length === 0 ? '' : this.#latest().proxy.output()
  }

  /** Sends a signal to the latest one that runs. */
  signal(signal: NodeJS.Signals): void {
    this.#latest().child.kill(signal)
  }

  /** Sends the signal, if there is one, and waits until the latest one has ended. */
  async ended(signal?: NodeJS.Signals): Promise<void> {
    const { child, proxy } = this.#latest()
    if (!proxy.isRunning()) return
    const exited = once(child, 'exit')
    if (signal !== undefined) child.kill(signal)
    await exited
  }

  /** The latest one that runs, or else the latest that was started. */
  #latest(): Started {
    const latest = this.#started.findLast(({ proxy }) => proxy.isRunning()) ?? this.#started.at(-1)
    if (latest === undefined) throw new Error('no daemon was started')
    return latest
  }
}
