import { writeFileSync } from 'node:fs'
import { applyConntrackSettings } from '../kernel/conntrack-settings.js'
import { messageOf } from '../errors.js'
import { chooseMode, warnPassedOver } from '../modes/choose.js'
import { cleanLeftovers, cleanupContext } from '../modes/leftovers.js'
import { modeLoaders, type ModeLoaders } from '../modes/registry.js'
import { isLinux } from '../platform.js'
import { Sysctls } from '../kernel/sysctl.js'
import { tellWaits } from './slow-programs.js'
import { isProxyMode, type Config } from '../config/config.js'
import type { Log } from '../modes/mode.js'

/** Sets the OOM score, the connection table and its time-outs. No failure is fatal (pains 24). */
export function applyNodeSettings(config: Config, log: Log): void {
  // Other systems have neither these files nor these settings.
  if (!isLinux()) return
  const oomFailure = setOomScore(config.oomScoreAdj)
  if (oomFailure !== undefined) log.debug({ error: oomFailure }, 'OOM score not set')
  const countsFlows = config.flows.enabled && !isProxyMode(config.mode)
  const outcomes = applyConntrackSettings({ ...config.conntrack, countsFlows }, new Sysctls())
  for (const { name, wanted, before, result, reason } of outcomes) {
    const fields = { setting: name, wanted, before }
    if (result === 'failed') log.warn({ ...fields, reason }, 'kernel setting not changed')
    else if (result === 'written') log.info(fields, 'kernel setting changed')
  }
}

/**
 * Does the work that needs full privileges, once before the daemon, which can then run with fewer
 * (L14). A failure is only logged: the daemon finds out by itself what it can do then.
 */
export async function prepareNode(config: Config, log: Log): Promise<void> {
  applyNodeSettings(config, log)
  await tellWaits(log, () => prepareMode(config, log))
}

/**
 * Chooses a mode as the daemon will. The choice uses each part of the kernel once, which loads the
 * parts that are modules; the daemon may be unable to load them. If no mode can run, all that the
 * daemon could choose have been tried.
 */
export async function prepareMode(
  config: Config,
  log: Log,
  loaders: ModeLoaders = modeLoaders,
): Promise<void> {
  const requested = config.mode
  try {
    const chosen = await chooseMode(
      { mode: requested, fallback: config.modeFallback, config },
      log,
      loaders,
    )
    warnPassedOver(chosen, log)
    await chosen.definition.prepare?.(config, { log })
    // The daemon may see no pins, and may not detach programs. They would go on with the endpoints
    // that they know. Connections then use the rules, which stay until those of the daemon work.
    const { ebpf } = loaders
    if (ebpf) await cleanLeftovers(chosen.mode, cleanupContext(log), config, { ebpf })
    log.info({ mode: chosen.mode, requested }, `Prepared this node for ${chosen.mode} mode`)
  } catch (error) {
    log.warn({ mode: requested, error: messageOf(error) }, 'this mode could not be prepared')
  }
}

/** L13: makes the kernel kill other processes first. Returns why that failed; it is not fatal. */
export function setOomScore(score: number, root = '/proc'): string | undefined {
  try {
    writeFileSync(`${root}/self/oom_score_adj`, String(score))
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}
