import { mapsOfProgram } from '../../kernel/bpf/attached.js'
import { BpfMap } from '../../kernel/bpf/map.js'
import { bindMap } from '../../kernel/bpf/program.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import { number32 } from './layout.js'
import { mapNames } from './names.js'

const spec = { kind: 'array', keyBytes: 4, valueBytes: 8, entries: 1 } as const
const first = number32(0)

/**
 * A note that is kept with each program: the number of the network namespace whose proxy attached
 * it. A cgroup has the programs of all proxies, so a proxy must know its own.
 */
export class NetworkNote {
  readonly #calls: SystemCalls
  readonly #map: BpfMap

  constructor(calls: SystemCalls, network: bigint) {
    this.#calls = calls
    this.#map = BpfMap.create(calls, { name: mapNames.network, ...spec })
    const value = Buffer.alloc(spec.valueBytes)
    value.writeBigUInt64LE(network)
    this.#map.update(first, value)
  }

  addTo(program: number): void {
    bindMap(this.#calls, program, this.#map.fd)
  }

  close(): void {
    this.#map.close()
  }
}

/** Whether a program is of another network namespace. Older releases left no note. */
export function isOfOtherNetwork(calls: SystemCalls, programId: number, network: bigint): boolean {
  const maps = mapsOfProgram(calls, programId)
  try {
    const note = maps.find(({ spec: { name } }) => name === mapNames.network)?.lookup(first)
    return note !== undefined && note.readBigUInt64LE() !== network
  } finally {
    for (const map of maps) map.close()
  }
}
