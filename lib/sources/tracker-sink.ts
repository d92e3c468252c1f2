import { parseEndpointSlice } from '../state/parse-endpoint-slice.js'
import { parseNode, parseServiceCidr } from '../state/parse-node.js'
import { parseService } from '../state/parse-service.js'
import type { Identity, Parsed } from '../state/objects.js'
import type { ObjectKind, ObjectSink } from './source.js'
import type { Tracker } from '../state/tracker.js'
import type { NodeObject } from '../state/objects.js'

/** Is told about the objects that come in. */
interface SinkListener {
  /**
   * An object came, changed or went. `isComplete` says whether enough objects are known to begin.
   */
  changed(kind: ObjectKind, isComplete: boolean): void
  /** So many ports of a Service or endpoints of a slice came, new or not. */
  came?(kind: 'servicePorts' | 'endpoints', count: number): void
  /** An object cannot be used; its last good version stays in use. */
  malformed(kind: ObjectKind, identity: Identity, reason: string): void
  /** A part of an object has no effect; the rest is used. */
  warned(kind: ObjectKind, identity: Identity, warning: string): void
  /** An object has no other warnings than these now; one that went has none. */
  complaints?(kind: ObjectKind, identity: Identity, warnings: readonly string[]): void
  /** The object of this node came, changed or went. */
  nodeChanged(node: NodeObject | undefined): void
  failed(message: string): void
  recovered?(path: string): void
}

interface Named {
  readonly namespace?: string
  readonly name: string
}

/** Parses raw objects into the tracker, and knows when enough are known to begin (R01). */
export class TrackerSink implements ObjectSink {
  readonly #tracker: Tracker
  readonly #nodeName: string
  readonly #listener: SinkListener
  /** Kinds of which all objects must be known before anything is written. */
  readonly #missing = new Set<ObjectKind>(['Service', 'EndpointSlice', 'Node', 'ServiceCIDR'])

  constructor(tracker: Tracker, nodeName: string, listener: SinkListener) {
    this.#tracker = tracker
    this.#nodeName = nodeName
    this.#listener = listener
  }

  /**
   * All Services, EndpointSlices and ServiceCIDRs and this node are known. Rules written before that
   * could lack what exists, or apply policies and hints without the node.
   */
  get isComplete(): boolean {
    return this.#missing.size === 0
  }

  /** Begins without a kind that may never come. Returns whether it was still missing. */
  stopWaitingFor(kind: 'Node' | 'ServiceCIDR'): boolean {
    const wasMissing = this.#missing.delete(kind)
    if (wasMissing) this.#listener.changed(kind, this.isComplete)
    return wasMissing
  }

  upsert(kind: ObjectKind, raw: unknown): void {
    const tracker = this.#tracker
    switch (kind) {
      case 'Service':
        this.#use(kind, parseService(raw), (service) => {
          tracker.upsertService(service)
          this.#listener.came?.('servicePorts', service.ports.length)
        })
        break
      case 'EndpointSlice':
        this.#use(kind, parseEndpointSlice(raw, tracker.endpointRules), (slice) => {
          tracker.upsertEndpointSlice(slice)
          this.#listener.came?.('endpoints', slice.ports.length * slice.endpoints.length)
        })
        break
      case 'ServiceCIDR':
        this.#use(kind, parseServiceCidr(raw), (cidr) => tracker.upsertServiceCidr(cidr))
        break
      case 'Node':
        this.#use(kind, parseNode(raw), (node) => {
          if (node.name === this.#nodeName) this.#setNode(node)
        })
    }
  }

  remove(kind: ObjectKind, namespace: string, name: string): void {
    this.#drop(kind, { namespace, name }, [])
  }

  #drop(kind: ObjectKind, { namespace, name }: Identity, warnings: readonly string[]): void {
    switch (kind) {
      case 'Service':
        this.#tracker.removeService(namespace, name)
        break
      case 'EndpointSlice':
        this.#tracker.removeEndpointSlice(namespace, name)
        break
      case 'ServiceCIDR':
        this.#tracker.removeServiceCidr(name)
        break
      case 'Node':
        if (name === this.#nodeName) this.#setNode(undefined)
    }
    this.#warn(kind, { namespace, name }, warnings)
    this.#listener.changed(kind, this.isComplete)
  }

  synced(kind: ObjectKind): void {
    this.#missing.delete(kind)
    this.#listener.changed(kind, this.isComplete)
  }

  failed(message: string): void {
    this.#listener.failed(message)
  }

  recovered(path: string): void {
    this.#listener.recovered?.(path)
  }

  #use<T extends Named>(kind: ObjectKind, parsed: Parsed<T>, accept: (value: T) => void): void {
    if (parsed.outcome === 'accepted') {
      accept(parsed.value)
      const { namespace = '', name } = parsed.value
      this.#warn(kind, { namespace, name }, parsed.warnings)
      this.#listener.changed(kind, this.isComplete)
    } else if (parsed.outcome === 'ignored') {
      // An object that no longer belongs to this proxy counts as removed (S03, E-headless).
      this.#drop(kind, parsed.identity, parsed.warnings ?? [])
    } else this.#listener.malformed(kind, parsed.identity, parsed.reason)
  }

  #warn(kind: ObjectKind, identity: Identity, warnings: readonly string[]): void {
    this.#listener.complaints?.(kind, identity, warnings)
    for (const warning of warnings) this.#listener.warned(kind, identity, warning)
  }

  #setNode(node: NodeObject | undefined): void {
    this.#tracker.setNode(node)
    this.#listener.nodeChanged(node)
  }
}
