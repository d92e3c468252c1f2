import { pause } from '../async.js'
import { KernelError, messageOf } from '../errors.js'
import { missingIn } from './findings.js'
import { modeLoaders, type ModeLoaders } from './registry.js'
import { missingSystem, modeMeant } from './systems.js'
import { systemHere, type System } from '../platform.js'
import type { Config, ModeName, ProxyMode } from '../config/config.js'
import type { Finding, Log, ModeDefinition } from './mode.js'

interface ModeRequest {
  readonly mode: ProxyMode
  readonly fallback: ModeName | 'none'
  /** What the modes are asked to do. They may not be able to, such as to serve a certain cgroup. */
  readonly config?: Config
}

export interface ChosenMode {
  readonly mode: ModeName
  readonly definition: ModeDefinition
  /** Modes that were tried before and cannot run here, with what they miss. */
  readonly passedOver: readonly PassedOver[]
}

interface PassedOver {
  readonly mode: ModeName
  readonly missing: readonly Finding[]
}

/** `auto` tries the modes in this order: the cheapest for packets and for changes comes first. */
const autoOrder: readonly ModeName[] = ['nftables', 'iptables', 'userspace']

/** By mode: another mode that does the same. It is tried before the fallback. */
const nearest: Readonly<Partial<Record<ModeName, ModeName>>> = { ebpf: 'nftables' }

/** Picks the requested mode, or else the fallback (US76). Throws if none can run. */
export async function chooseMode(
  request: ModeRequest,
  log: Log,
  loaders: ModeLoaders = modeLoaders,
  here: System = systemHere(),
): Promise<ChosenMode> {
  const passedOver: PassedOver[] = []
  const fallback = request.fallback === 'none' ? 'none' : modeMeant(request.fallback, here)
  for (const mode of candidates(modeMeant(request.mode, here), fallback)) {
    const load = loaders[mode]
    if (!load) continue
    const elsewhere = missingSystem(mode, here)
    if (elsewhere) {
      passedOver.push({ mode, missing: [elsewhere] })
      continue
    }
    try {
      const definition = await load()
      const missing = await missingFor(definition, { mode, log, config: request.config })
      if (missing.length === 0) return { mode, definition, passedOver }
      passedOver.push({ mode, missing })
    } catch (error) {
      // A mode that does not load, or whose probe throws, does not run. Without koffi most do not load.
      const [what, fix] = [`probe of ${mode} mode`, 'see kube-proxy check']
      const missing = [{ what, ok: false, required: true, seen: messageOf(error), fix }]
      passedOver.push({ mode, missing })
    }
  }
  const reasons = passedOver.map(({ mode, missing }) => `${mode}: ${describe(missing)}`)
  throw new KernelError(
    'unsupported',
    `choose a proxy mode: none can run here; ${reasons.join('; ')}`,
  )
}

/** A mode that is passed over is not tried again until the next start, so a passing reason is waited for. */
async function missingFor(
  definition: ModeDefinition,
  { mode, log, config }: { mode: ModeName; log: Log; config: Config | undefined },
): Promise<readonly Finding[]> {
  for (let tried = 1; ; tried++) {
    const missing = missingIn(await definition.probe({ log }, config))
    if (tried === 3 || !missing.some(({ mayPass }) => mayPass)) return missing
    log.warn({ mode, missing: describe(missing) }, `${mode} mode is tried again in a second`)
    await pause(1000, undefined)
  }
}

/** Logs why modes that were tried before the chosen one cannot run. */
export function warnPassedOver({ passedOver }: ChosenMode, log: Log): void {
  for (const { mode, missing } of passedOver)
    log.warn({ mode, missing: describe(missing) }, `this node cannot run ${mode} mode`)
}

/** Makes one text of findings, such as `kernel module ip_vs (not found): modprobe ip_vs`. */
export function describe(findings: readonly Finding[]): string {
  return findings.map(({ what, seen, fix }) => `${what} (${seen}): ${fix}`).join(', ')
}

function candidates(
  mode: ModeName | 'auto',
  fallback: ModeRequest['fallback'],
): readonly ModeName[] {
  if (mode === 'auto') return autoOrder
  if (fallback === 'none') return [mode]
  const below = nearest[mode]
  return [...new Set([mode, ...(below ? [below] : []), fallback])]
}
