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

/** All Services are counted again when there are more by this factor. */
const growth = 1.2

/**
 * Logs a warning when the Services of this cluster do not fit the memory limit of this process and
 * its children, before the kernel kills it without a word. The limit is in bytes; 0 or undefined
 * where there is none.
 */
export function memoryWatch(mode: ModeName, limit: number | undefined, log: Log): SyncListener {
  let looked = 0
  return {
    started({ states }: StateUpdate) {
      if (limit === undefined || limit === 0) return
      const services = states.reduce((sum, state) => sum + state.services.size, 0)
      if (services <= looked * growth) return
      looked = services
      let endpoints = 0
      for (const state of states) {
        for (const service of state.services.values()) endpoints += service.clusterEndpoints.length
      }
      const { base, each } = needs[mode]
      const neededMiB = Math.ceil(base + ((services + endpoints) * each) / 1024)
      const limitMiB = Math.floor(limit / 1024 / 1024)
      if (neededMiB <= limitMiB) return
      log.warn(
        { limitMiB, neededMiB, servicePorts: services, endpoints },
        'the memory limit is too low for so many Services, and the kernel may kill this process: ' +
          'raise it (resources.limits.memory, MemoryMax=)',
      )
    },
  }
}

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
