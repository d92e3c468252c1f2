import { BpfMap, openTogether } from '../../kernel/bpf/map.js'
import { BpfRing } from '../../kernel/bpf/ring.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import type { Log } from '../mode.js'
import { begun, flowRingBytes, flowsLostBytes } from './flow-layout.js'
import { number32 } from './layout.js'
import { mapNames } from './names.js'
import type { Pins } from './pins.js'
import { openOne, perSocket } from './shared-maps.js'
import type { FlowMaps } from './programs/view.js'

/** The maps with which programs report single connections. They exist only if somebody listens. */
export class OpenFlowMaps {
  readonly maps: FlowMaps
  readonly #ring: BpfRing
  readonly #lost: BpfMap
  readonly #begun: BpfMap
  #isClosed = false

  /** Pins when connections began, for the next process. Records that nobody has read are lost. */
  constructor(calls: SystemCalls, pins: Pins | undefined, log: Log) {
    const ofLost = { kind: 'array', keyBytes: 4, valueBytes: flowsLostBytes, entries: 1 } as const
    const opened = openTogether((open) => ({
      begun: open(openOne(calls, { name: mapNames.begun, ...perSocket(begun.bytes) }, pins, log)),
      ring: open(new BpfRing(calls, mapNames.flows, flowRingBytes)),
      lost: open(BpfMap.create(calls, { name: mapNames.flowsLost, ...ofLost })),
    }))
    this.#ring = opened.ring
    this.#lost = opened.lost
    this.#begun = opened.begun
    this.maps = { ...opened, ring: opened.ring.map }
  }

  /** Visits the records since the last call, and returns how many they are. */
  read(visit: Parameters<BpfRing['read']>[0]): number {
    // A closed ring has no memory to read.
    return this.#isClosed ? 0 : this.#ring.read(visit)
  }

  /** How many records had no room in the ring so far. */
  lostSoFar(): number {
    const bytes = this.#isClosed ? undefined : this.#lost.lookup(number32(0))
    return Number(bytes?.readBigUInt64LE() ?? 0)
  }

  close(): void {
    this.#isClosed = true
    for (const each of [this.#begun, this.#ring, this.#lost]) each.close()
  }
}
