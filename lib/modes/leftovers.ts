import { readFileSync } from 'node:fs'
import { aborted, pause } from '../async.js'
import { Complaints } from './complaints.js'
import { messageOf } from '../errors.js'
import { modeLoaders, type ModeLoaders } from './registry.js'
import { missingSystem } from './systems.js'
import type { ModeName } from '../config/config.js'
import type { ModeContext } from './mode.js'

/**
 * Modes whose rules the cleanup of another mode would remove. ipvs mode has chains of the same names
 * as iptables mode, and removes the other chains of that mode itself, when it writes its rules. The
 * packet path of ebpf mode is nftables mode. The cleanups of these two know their own from the others.
 */
const sharesRulesWith: Readonly<Partial<Record<ModeName, ModeName>>> = {
  ipvs: 'iptables',
  ebpf: 'nftables',
}

/** Time between tries; another program may hold the lock of iptables for minutes. */
const retryMs = [1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000]

/** Cleans once `inForce` is aborted, and tries again while something is in the way. */
export async function runLeftoverCleanup(
  current: ModeName,
  context: ModeContext,
  inForce: AbortSignal,
  signal: AbortSignal,
): Promise<void> {
  if (!mayChangeRules()) {
    context.log.info({}, 'without NET_ADMIN nothing is done about what other modes may have left')
    return
  }
  await aborted(AbortSignal.any([inForce, signal]))
  const { log } = new Complaints(context.log)
  for (const waitMs of retryMs) {
    if (signal.aborted || (await cleanLeftovers(current, { ...context, log }))) return
    await pause(waitMs, signal)
  }
  if (signal.aborted) return
  log.warn({}, 'what other modes left stays: stop the proxy, run `kube-proxy cleanup`, start it')
}

/** Looks at NET_ADMIN, bit 12 of the capabilities; true where they cannot be read. */
function mayChangeRules(): boolean {
  try {
    const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(
      readFileSync('/proc/self/status', 'utf8'),
    )?.[1]
    return effective === undefined || (BigInt(`0x${effective}`) & (1n << 12n)) !== 0n
  } catch {
    return true
  }
}

/**
 * Removes what an earlier run in another mode left (L16). Unlike upstream this happens after the
 * rules of the present mode are in force, so that a switch leaves no gap. It must not happen later,
 * because rules of userspace mode would send packets to listeners that ended with their process.
 * Resolves to whether everything is gone.
 */
export async function cleanLeftovers(
  current: ModeName,
  context: ModeContext,
  loaders: ModeLoaders = modeLoaders,
): Promise<boolean> {
  let isClean = true
  for (const [mode, load] of Object.entries(loaders)) {
    if (mode === current || mode === sharesRulesWith[current]) continue
    if (missingSystem(mode)) continue
    try {
      // Node.js keeps a failure to load, as without descriptors, until the process ends.
      const definition = await load()
      await definition.cleanup(context)
    } catch (error) {
      isClean = false
      const fields = { mode, error: messageOf(error) }
      context.log.warn(fields, 'what an earlier run in this mode left could not be removed yet')
    }
  }
  return isClean
}
