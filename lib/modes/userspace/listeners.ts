import type { ListenerSpec } from './datapath.js'
import type { ListenerChanges, OpenFailure, OpenOutcome } from './messages.js'
import type { Meter } from '../mode.js'
import { PortAllocator } from './port-allocator.js'

/** The part of the pool that listeners need. */
export interface ListenerHost {
  change(changes: ListenerChanges): Promise<OpenOutcome>
}

interface OpenListener {
  readonly spec: ListenerSpec
  readonly port: number
}

export interface ListenersOptions {
  /** Where proxy ports come from; undefined leaves it to the kernel (US31). */
  readonly range: { readonly from: number; readonly to: number } | undefined
  readonly meter: Meter
  /** Told about each listener that was closed for good. */
  readonly closed: (key: string) => void
}

/** How often a port of the range that somebody else holds is passed over in one sync. */
const maxOpenRounds = 16

/** The listeners that listen now and their ports, which they keep as long as they live. */
export class Listeners {
  readonly #host: ListenerHost
  readonly #options: ListenersOptions
  readonly #ports: PortAllocator | undefined
  readonly #open = new Map<string, OpenListener>()

  constructor(host: ListenerHost, options: ListenersOptions) {
    this.#host = host
    this.#options = options
    this.#ports = options.range ? new PortAllocator(options.range) : undefined
  }

  portOf(key: string): number | undefined {
    return this.#open.get(key)?.port
  }

  /** Those that died with their worker; the next `ensure` opens them again. */
  forget(isGone: (key: string) => boolean): void {
    for (const [key, { port }] of this.#open) {
      if (!isGone(key)) continue
      this.#ports?.release(port)
      this.#open.delete(key)
    }
  }

  /** Opens what is not open and hands changed specs on; tells which could not be opened. */
  async ensure(specs: readonly ListenerSpec[]): Promise<readonly OpenFailure[]> {
    const update = specs.filter((spec) => {
      const open = this.#open.get(spec.key)
      return open && open.spec !== spec
    })
    let open = specs.filter((spec) => !this.#open.has(spec.key))
    const failures: OpenFailure[] = []
    const avoid = new Set<number>()
    for (let round = 0; round < maxOpenRounds; round++) {
      const numbered = this.#number(open, avoid, failures)
      const changes = { open: numbered, update: round === 0 ? update : [], close: [] }
      if (numbered.length + changes.update.length === 0) break
      const { opened, failed } = await this.#host.change(changes)
      const byKey = new Map(open.map((spec) => [spec.key, spec]))
      for (const { key, port } of opened) {
        const spec = byKey.get(key)
        if (spec) this.#open.set(key, { spec, port })
      }
      const ports = new Map(numbered.map(({ key, port }) => [key, port]))
      const again = failed.filter(({ code }) => code === 'EADDRINUSE' && this.#ports)
      failures.push(...failed.filter((failure) => !again.includes(failure)))
      for (const { key } of failed) this.#ports?.release(ports.get(key) ?? 0)
      for (const { key } of again) avoid.add(ports.get(key) ?? 0)
      open = again.flatMap(({ key }) => byKey.get(key) ?? [])
    }
    for (const spec of update) {
      const known = this.#open.get(spec.key)
      if (known) this.#open.set(spec.key, { spec, port: known.port })
    }
    const { meter } = this.#options
    meter.gauge('userspace_listeners', {}, this.#open.size)
    for (const { code } of failures)
      meter.count('userspace_listen_failures_total', { reason: code })
    return failures
  }

  async close(keys: readonly string[]): Promise<void> {
    const close = keys.filter((key) => this.#open.has(key))
    if (close.length === 0) return
    for (const key of close) {
      this.#ports?.release(this.portOf(key) ?? 0)
      this.#open.delete(key)
    }
    await this.#host.change({ open: [], update: [], close })
    for (const key of close) this.#options.closed(key)
    this.#options.meter.gauge('userspace_listeners', {}, this.#open.size)
  }

  #number(
    specs: readonly ListenerSpec[],
    avoid: ReadonlySet<number>,
    failures: OpenFailure[],
  ): readonly ListenerSpec[] {
    const ports = this.#ports
    if (!ports) return specs
    return specs.flatMap((spec) => {
      const port = ports.take(avoid)
      if (port !== undefined) return { ...spec, port }
      const message = 'no port of --proxy-port-range is free; widen the range'
      failures.push({ key: spec.key, code: 'ERANGE', message })
      return []
    })
  }
}
