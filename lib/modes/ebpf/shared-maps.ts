import { KernelError } from '../../errors.js'
import { BpfMap, type MapSpec } from '../../kernel/bpf/map.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import type { Log } from '../mode.js'
import {
  affinityKey,
  affinityValue,
  datagrams,
  socketCookieBytes,
  translation,
  udpSocket,
} from './layout.js'
import { mapNames } from './names.js'
import type { Pins } from './pins.js'
import type { SharedMaps } from './programs/view.js'

/** So many connected UDP sockets are translated at a time; more take the packet path. */
const mostUdpSockets = 65_536

/** So many clients of services with session affinity are remembered; the oldest are forgotten. */
const rememberedClients = 65_536

type SharedSpec = Omit<MapSpec, 'name'>

const perSocket = (valueBytes: number): SharedSpec => ({
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
}

export interface OpenSharedMaps {
  readonly maps: Readonly<Record<keyof SharedMaps, BpfMap>>
  close(): void
}

/** The maps about sockets and clients: those of the process before, where they are pinned. */
export function openSharedMaps(
  calls: SystemCalls,
  pins: Pins | undefined,
  log: Log,
): OpenSharedMaps {
  const opened: BpfMap[] = []
  const open = (name: keyof SharedMaps): BpfMap => {
    const map = openOne(calls, { name: mapNames[name], ...specs[name] }, pins, log)
    opened.push(map)
    return map
  }
  const close = () => {
    for (const map of opened) map.close()
  }
  try {
    const maps = {
      connections: open('connections'),
      datagrams: open('datagrams'),
      affinity: open('affinity'),
      udpSockets: open('udpSockets'),
    }
    return { maps, close }
  } catch (error) {
    close()
    throw error
  }
}

function openOne(calls: SystemCalls, spec: MapSpec, pins: Pins | undefined, log: Log): BpfMap {
  const found = pins?.find(spec.name)
  if (found !== undefined) {
    try {
      return BpfMap.open(calls, spec, found)
    } catch (error) {
      if (!(error instanceof KernelError) || error.kind !== 'invalid') throw error
      log.warn(
        { map: spec.name },
        'a pinned eBPF map has another layout; a new one takes its place',
      )
    }
  }
  const map = BpfMap.create(calls, spec)
  pins?.keep(spec.name, map.fd)
  return map
}
