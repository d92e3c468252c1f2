import { aborted, pause } from '../async.js'
import type { ModeName } from '../config/config.js'
import type { Log } from '../modes/mode.js'
import type { StateUpdate } from '../state/tracker.js'
import type { SyncListener } from '../sync/sync-round.js'

/**
 * The most memory that a control group held: MiB without Services, and KiB for each service port
 * and each endpoint, programs of iptables included. It was measured with Node 24 at starts with 100,
 * 2,000 and 5,000 Services of ten endpoints (docs/scale.md). The numbers of ebpf are those of
 * nftables and the difference in one run: 11 MiB with 100 Services and at most 20 with 5,000. ipvs
 * was not measured.
 */
const needs: Readonly<Record<ModeName, { readonly base: number; readonly each: number }>> = {
  nftables: { base: 40, each: 1.8 },
  iptables: { base: 41, each: 2.8 },
  ebpf: { base: 51, each: 2 },
  ipvs: { base: 41, each: 2.8 },
  userspace: { base: 63, each: 3 },
  // Windows has no control groups, so nothing is compared with it.
  winuserspace: { base: 63, each: 3 },
}

/**
 * The part of these needs that is in V8's heap. 32,000 Services of ten endpoints in nftables mode
 * need 659 MiB by the numbers above; with a heap of 362 MiB V8 ended the process, with 420 not.
 */
const shareOfHeap = 0.65

/** All Services are counted again when there are more by this factor. */
const growth = 1.2

export interface MemoryWatch extends SyncListener {
  /**
   * So many ports of a Service or endpoints of a slice have come. Before the first sync they are
   * counted: a limit that is far too low ends the process while they come.
   */
  readonly came: (kind: keyof Counted, count: number) => void
}

interface Counted {
  readonly servicePorts: number
  readonly endpoints: number
}

/**
 * Logs a warning when the Services of this cluster do not fit the memory limit of this process and
 * its children, before the kernel kills it without a word, or V8's own limit, which V8 derives from it
 * and from the memory of the machine. The limits are in bytes; 0 or undefined where there is none.
 */
export function memoryWatch(
  mode: ModeName,
  { limit = 0, heap }: { readonly limit?: number | undefined; readonly heap: number },
  log: Log,
): MemoryWatch {
  const limitMiB = limit > 0 ? mebibytes(limit) : Infinity
  const heapLimitMiB = mebibytes(heap)
  const arrived = { servicePorts: 0, endpoints: 0 }
  let looked = 0
  /** Returns whether they fit. */
  const look = (counted: Counted, more = ''): boolean => {
    const { base, each } = needs[mode]
    const neededMiB = Math.ceil(base + ((counted.servicePorts + counted.endpoints) * each) / 1024)
    const isEnough = neededMiB <= limitMiB
    const isHeapEnough = neededMiB * shareOfHeap <= heapLimitMiB
    if (!isEnough) log.warn({ limitMiB, neededMiB, ...counted }, `${tooLow}${more}`)
    if (!isHeapEnough)
      log.warn({ heapLimitMiB, neededMiB, ...counted }, `${heapTooLow}${neededMiB}${more}`)
    return isEnough && isHeapEnough
  }
  let isArriving = true
  return {
    came(kind, count) {
      if (!isArriving) return
      arrived[kind] += count
      isArriving = look(arrived, '; more objects are coming, so it takes more than that')
    },
    started({ states }: StateUpdate) {
      isArriving = false
      const servicePorts = states.reduce((sum, state) => sum + state.services.size, 0)
      if (servicePorts <= looked * growth) return
      looked = servicePorts
      let endpoints = 0
      for (const state of states) {
        for (const service of state.services.values()) endpoints += service.clusterEndpoints.length
      }
      look({ servicePorts, endpoints })
    },
  }
}

const mebibytes = (bytes: number) => Math.floor(bytes / 1024 / 1024)

const tooLow =
  'the memory limit is too low for so many Services, and the kernel may kill this process: ' +
  'raise it (resources.limits.memory, MemoryMax=)'

const heapTooLow =
  "the limit of V8's heap is too low for so many Services, and V8 may end this process; Node sets " +
  'it to half of the memory or less: start with NODE_OPTIONS=--max-old-space-size='

/** The pause before memory is freed, so that changes right after the first rules go first. */
const usualRestMs = 500

/**
 * Frees the memory that only the start has needed: lists, and the text or the messages of all
 * rules, once the rules of every family are in the kernel. V8 would keep it, because it collects
 * garbage only while a program allocates.
 */
export async function freeStartMemory(
  allApplied: AbortSignal,
  signal: AbortSignal,
  restMs = usualRestMs,
): Promise<void> {
  await aborted(AbortSignal.any([allApplied, signal]))
  await pause(restMs, signal)
  if (signal.aborted) return
  await collectGarbage()
}

/** The inspector is asked within this process, and opens no port. */
async function collectGarbage(): Promise<void> {
  // Loaded here, because the inspector takes a megabyte that a start does without.
  const { Session } = await import('node:inspector/promises')
  const session = new Session()
  session.connect()
  await session.post('HeapProfiler.collectGarbage')
  session.disconnect()
}
