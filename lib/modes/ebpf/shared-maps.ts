import { KernelError } from '../../errors.js'
import { BpfMap, openTogether, type MapSpec } from '../../kernel/bpf/map.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import type { Log } from '../mode.js'
import {
  affinityKey,
  affinityValue,
  counted,
  datagrams,
  keptRefusals,
  openBytes,
  openKey,
  protocols,
  refusal,
  socketCookieBytes,
  statistics,
  statisticsKey,
  translation,
  udpSocket,
} from './layout.js'
import { mapNames } from './names.js'
import type { Pins } from './pins.js'
import type { SharedMaps } from './programs/view.js'

/** The most connected UDP sockets that are translated at a time. Others take the packet path. */
const mostUdpSockets = 65_536

/** The most clients of services with session affinity to remember. The oldest are forgotten. */
const rememberedClients = 65_536

/** The most endpoints with numbers of their own. Others are counted together. */
const mostCounted = 16_384

/** The most endpoints whose open connections are counted. Others seem to have none. */
const mostOpen = 16_384

type SharedSpec = Omit<MapSpec, 'name'>

export const perSocket = (valueBytes: number): SharedSpec => ({
  kind: 'per-socket',
  keyBytes: 4,
  valueBytes,
  entries: 0,
})

const specs: Readonly<Record<keyof SharedMaps, SharedSpec>> = {
  connections: perSocket(translation.bytes),
  datagrams: perSocket(datagrams.bytes),
  affinity: {
    kind: 'recent',
    keyBytes: affinityKey.bytes,
    valueBytes: affinityValue.bytes,
    entries: rememberedClients,
  },
  udpSockets: {
    kind: 'hash',
    keyBytes: socketCookieBytes,
    valueBytes: udpSocket.bytes,
    entries: mostUdpSockets,
  },
  open: { kind: 'hash', keyBytes: openKey.bytes, valueBytes: openBytes, entries: mostOpen },
  counted: perSocket(counted.bytes),
  statistics: {
    kind: 'per-processor',
    keyBytes: statisticsKey.bytes,
    valueBytes: statistics.bytes,
    entries: mostCounted,
  },
  refusals: { kind: 'array', keyBytes: 4, valueBytes: refusal.bytes, entries: 1 + keptRefusals },
}

type Opened = Record<keyof SharedMaps, BpfMap>

/** The maps about sockets and clients. Pinned maps of the process before are used again. */
export class OpenSharedMaps {
  readonly #calls: SystemCalls
  readonly #pins: Pins | undefined
  readonly #maps: Opened

  constructor(calls: SystemCalls, pins: Pins | undefined, log: Log) {
    this.#calls = calls
    this.#pins = pins
    this.#maps = openTogether((open) => {
      const openMap = (name: keyof SharedMaps) => open(openOne(calls, specOf(name), pins, log))
      const maps = {
        connections: openMap('connections'),
        datagrams: openMap('datagrams'),
        affinity: openMap('affinity'),
        udpSockets: openMap('udpSockets'),
        open: openMap('open'),
        counted: openMap('counted'),
        statistics: openMap('statistics'),
        refusals: openMap('refusals'),
      }
      prepareRest(maps.statistics)
      return maps
    })
  }

  get maps(): Readonly<Opened> {
    return this.#maps
  }

  /** Counts anew: a socket that was closed while no program saw it would count as open for ever. */
  countAnew(): void {
    for (const name of ['counted', 'statistics', 'open'] as const) {
      const map = createOne(this.#calls, specOf(name), this.#pins)
      this.#maps[name].close()
      this.#maps[name] = map
    }
    prepareRest(this.#maps.statistics)
  }

  close(): void {
    for (const map of Object.values(this.#maps)) map.close()
  }
}

const specOf = (name: keyof SharedMaps): MapSpec => ({ name: mapNames[name], ...specs[name] })

/** Makes the entries that count what has no room in the map. They must never be missing. */
function prepareRest(map: BpfMap): void {
  for (const protocol of Object.values(protocols)) {
    const key = Buffer.alloc(statisticsKey.bytes)
    key.writeUInt8(protocol, statisticsKey.protocol)
    if (map.lookup(key) === undefined) map.update(key, Buffer.alloc(0))
  }
}

/** The map of this name that an earlier process pinned, or a new one. */
export function openOne(
  calls: SystemCalls,
  spec: MapSpec,
  pins: Pins | undefined,
  log: Log,
): BpfMap {
  const found = pins?.find(spec.name)
  if (found !== undefined) {
    try {
      const map = BpfMap.open(calls, spec, found)
      pins?.hold(spec.name, map.fd)
      return map
    } catch (error) {
      if (!(error instanceof KernelError) || error.kind !== 'invalid') throw error
      log.warn(
        { map: spec.name },
        'a pinned eBPF map has another layout; a new one takes its place',
      )
    }
  }
  return createOne(calls, spec, pins)
}

function createOne(calls: SystemCalls, spec: MapSpec, pins: Pins | undefined): BpfMap {
  const map = BpfMap.create(calls, spec)
  pins?.keep(spec.name, map.fd)
  return map
}
