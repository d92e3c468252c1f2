import type { ListenerSpec } from '../datapath/datapath.js'
import type { HeldDescriptor, ListenerChanges, OpenFailure, OpenOutcome } from './messages.js'
import type { Meter } from '../../mode.js'
import { PortAllocator } from './port-allocator.js'

/** The part of the pool that listeners need. */
export interface ListenerHost {
  change(changes: ListenerChanges): Promise<OpenOutcome>
  descriptors(keys: readonly string[]): Promise<readonly HeldDescriptor[]>
}

/** An open socket on its way from one process to the next. */
export interface GivenListener {
  readonly key: string
  readonly protocol: string
  readonly address: string
  readonly port: number
  readonly descriptor: number
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
  /** Taken over from another process, and not yet in use here. */
  readonly #given = new Map<string, GivenListener>()

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
      const again = failed.filter(
        ({ code, key }) => code === 'EADDRINUSE' && this.#ports && byKey.get(key)?.port === 0,
      )
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

  /**
   * Lets go of every listener, for another process to go on with. `copy` keeps a socket open that
   * its worker closes. Established connections stay where they are.
   */
  async give(copy: (descriptor: number) => number): Promise<readonly GivenListener[]> {
    const keys = [...this.#open.keys()]
    const copies = new Map<string, number>()
    for (const { key, descriptor } of await this.#host.descriptors(keys)) {
      const copied = copy(descriptor)
      if (copied >= 0) copies.set(key, copied)
    }
    const given: GivenListener[] = []
    for (const [key, { spec, port }] of this.#open) {
      const descriptor = copies.get(key)
      if (descriptor === undefined) continue
      given.push({ key, protocol: spec.protocol, address: spec.address, port, descriptor })
      this.#ports?.release(port)
    }
    for (const { key } of given) this.#open.delete(key)
    const handOver = given.map(({ key }) => key)
    await this.#host.change({ open: [], update: [], close: [], handOver })
    return given
  }

  /** Sockets for the next `ensure`, which goes on with them where key and address fit. */
  receive(given: readonly GivenListener[]): void {
    for (const listener of given) this.#given.set(listener.key, listener)
  }

  /** Those nobody wanted, for the caller to close. */
  unused(): readonly GivenListener[] {
    const unused = [...this.#given.values()]
    this.#given.clear()
    return unused
  }

  #fromGiven(spec: ListenerSpec): ListenerSpec | undefined {
    const given = this.#given.get(spec.key)
    if (given?.protocol !== spec.protocol || given.address !== spec.address) return undefined
    if (spec.port !== 0 && spec.port !== given.port) return undefined
    if (this.#ports?.keep(given.port) === false) return undefined
    this.#given.delete(spec.key)
    return { ...spec, port: given.port, descriptor: given.descriptor }
  }

  #number(
    specs: readonly ListenerSpec[],
    avoid: ReadonlySet<number>,
    failures: OpenFailure[],
  ): readonly ListenerSpec[] {
    const ports = this.#ports
    return specs.flatMap((spec) => {
      const known = this.#fromGiven(spec)
      if (known) return known
      if (!ports || spec.port !== 0) return spec
      const port = ports.take(avoid)
      if (port !== undefined) return { ...spec, port }
      const message = 'no port of --proxy-port-range is free; widen the range'
      failures.push({ key: spec.key, code: 'ERANGE', message })
      return []
    })
  }
}
