import { readFileSync } from 'node:fs'
import { aborted, isEnding, pause, type Bell } from '../async.js'
import { Complaints } from './complaints.js'
import { ifPossible, messageOf } from '../errors.js'
import { modeLoaders, type ModeLoaders } from './registry.js'
import { missingSystem } from './systems.js'
import type { Config, ModeName } from '../config/config.js'
import type { Log, ModeContext } from './mode.js'

/**
 * By mode: the mode whose cleanup must not run, because it would remove rules of this mode. ipvs
 * mode has chains of the same names as iptables mode. It removes the other chains of iptables mode
 * itself, when it writes its rules. ebpf mode uses the rules of nftables mode. The reverse is no
 * problem: the cleanups of ipvs and ebpf mode remove only what belongs to these modes.
 */
const sharesRulesWith: Readonly<Partial<Record<ModeName, ModeName>>> = {
  ipvs: 'iptables',
  ebpf: 'nftables',
}

/** Pauses between tries. They grow, because another program may lock iptables for minutes. */
const retryMs = [1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000]

/**
 * When everything is looked at again. A process that ran in another mode may have been told to end
 * only after this one worked, as in a rolling update, and may have repaired its rules until then.
 */
const againMs = [60_000, 300_000]

interface CleanupRun {
  readonly mode: ModeName
  readonly config: Config
  /** Aborted once the rules of the present mode work. */
  readonly inForce: AbortSignal
  /** Called each time when the rules of other modes are gone. */
  readonly cleaned: (isLast: boolean) => void
  /** Rung when another process has given up a port of this one: that was a proxy, and it has ended. */
  readonly portFreed?: Bell
  readonly loaders?: ModeLoaders
  readonly pausesMs?: readonly number[]
}

/** Cleans once the new rules work, and again later, anew at the bell. Tries again after a failure. */
export async function runLeftoverCleanup(
  { mode, config, inForce, cleaned, portFreed, loaders, pausesMs = againMs }: CleanupRun,
  context: ModeContext,
  signal: AbortSignal,
): Promise<void> {
  if (!mayChangeRules()) {
    context.log.info({}, 'without NET_ADMIN, rules that other modes may have left are not removed')
    return
  }
  await aborted(AbortSignal.any([inForce, signal]))
  const { log } = new Complaints(context.log)
  const clean = () => cleanLeftovers(mode, { ...context, log }, config, loaders, signal)
  for (let index = -1; index < pausesMs.length || portFreed; index++) {
    await pause(index < 0 ? 0 : (pausesMs[index] ?? Infinity), signal, portFreed)
    if (portFreed?.isRung === true) index = -1
    portFreed?.silence()
    if (!signal.aborted) await cleanPatiently(clean, log, signal)
    if (signal.aborted) return
    cleaned(index === pausesMs.length - 1)
  }
}

async function cleanPatiently(
  clean: () => Promise<boolean>,
  log: Log,
  signal: AbortSignal,
): Promise<void> {
  for (const waitMs of retryMs) {
    if (signal.aborted || (await clean())) return
    await pause(waitMs, signal)
  }
  if (signal.aborted) return
  const advice = 'stop the proxy, run `kube-proxy cleanup`, start the proxy'
  log.warn({}, `rules that other modes left could not be removed: ${advice}`)
}

/** For a cleanup without a daemon. */
export const cleanupContext = (log: Log): ModeContext => ({
  ...{ log, resync: () => undefined },
  meter: {
    count: () => undefined,
    gauge: () => undefined,
    observe: () => undefined,
    forget: () => undefined,
  },
})

/** Whether the process has NET_ADMIN, bit 12 of the capabilities; true if they cannot be read. */
function mayChangeRules(): boolean {
  const status = ifPossible(() => readFileSync('/proc/self/status', 'utf8')) ?? ''
  const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1]
  return effective === undefined || (BigInt(`0x${effective}`) & (1n << 12n)) !== 0n
}

/**
 * Removes what an earlier run in another mode left (L16), and tells whether everything is gone.
 * Unlike upstream this happens after the rules of the present mode work, so that a change of the
 * mode leaves no gap. It must happen soon, because old rules of userspace mode send packets to
 * listeners that ended with their process.
 */
export async function cleanLeftovers(
  current: ModeName,
  context: ModeContext,
  config?: Config,
  loaders: ModeLoaders = modeLoaders,
  signal?: AbortSignal,
): Promise<boolean> {
  let isClean = true
  for (const [mode, load] of Object.entries(loaders)) {
    if (mode === current || mode === sharesRulesWith[current]) continue
    if (missingSystem(mode)) continue
    try {
      // If this fails once, as without file descriptors, Node.js repeats the failure forever.
      const definition = await load()
      await definition.cleanup(context, config, { sparesUsed: true })
    } catch (error) {
      if (await isEnding(signal)) return false
      isClean = false
      const fields = { mode, error: messageOf(error) }
      context.log.warn(fields, 'what an earlier run in this mode left could not be removed yet')
    }
  }
  return isClean
}
