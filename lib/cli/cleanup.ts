import type { Command } from 'commander'
import { KernelError, messageOf } from '../errors.js'
import { startProgramsQuickly } from '../kernel/posix-spawn.js'
import { cleanupContext } from '../modes/leftovers.js'
import type { Log } from '../modes/mode.js'
import { modeLoaders, type ModeLoaders } from '../modes/registry.js'
import { missingSystem } from '../modes/systems.js'
import type { Config } from '../config/config.js'
import { defaultConfig } from '../config/load.js'
import { removeCounts } from '../observe/flows/saved-counts.js'
import { addOutputOptions, isData, printed, type OutputFlags } from './shared-options.js'
import { processLogger } from './logging.js'
import { installKoffi, isAboutKoffi } from './process.js'

/** Adds `kube-proxy cleanup`, the same as `kube-proxy --cleanup` (L15). */
export function addCleanupCommand(program: Command): void {
  const command = program
    .command('cleanup')
    .description('remove everything that any mode has installed on this node')
  addOutputOptions(command).action(async (flags: OutputFlags) => {
    const modes: CleanedMode[] = []
    try {
      await cleanup(processLogger(defaultConfig().logging), { modes })
    } finally {
      // People read the results in the log.
      if (isData(flags)) process.stdout.write(printed(flags, { data: modes, text: '' }))
    }
  })
}

interface CleanedMode {
  readonly mode: string
  readonly isClean: boolean
  /** Why the mode could not be cleaned up; empty if it was. */
  readonly reason: string
}

interface CleanupOptions {
  readonly loaders?: ModeLoaders
  readonly modes?: CleanedMode[]
  readonly config?: Config
}

/**
 * Removes what each mode has installed, and adds each mode to `modes`. Throws at the end when that
 * failed for some modes.
 */
export async function cleanup(
  log: Log,
  { loaders = modeLoaders, modes = [], config = defaultConfig() }: CleanupOptions = {},
): Promise<void> {
  await startProgramsQuickly()
  // First, because userspace mode removes the folder if it is empty then.
  await removeCounts(config.flows.stateFile)
  for (const [name, load] of Object.entries(loaders)) {
    // A mode of another operating system cannot have installed anything here.
    if (missingSystem(name)) continue
    try {
      const definition = await load().catch(notLoaded)
      await definition.cleanup(cleanupContext(log), config)
      log.info({ mode: name }, 'Cleaned up')
      modes.push({ mode: name, isClean: true, reason: '' })
    } catch (error) {
      modes.push({ mode: name, isClean: false, reason: messageOf(error) })
    }
  }
  await warnOfProxy(config.metricsBindAddress, log)
  const failures = modes.flatMap(({ mode, isClean, reason }) =>
    isClean ? [] : [`${mode}: ${reason}`],
  )
  if (failures.length > 0) {
    throw new KernelError('failed', `clean up this node: ${failures.join('; ')}`)
  }
}

/** A proxy that still runs takes a cleanup for a foreign change, and repairs it. */
async function warnOfProxy(address: string, log: Log): Promise<void> {
  // Without an address the path would be taken for the name of a host, which DNS is asked for.
  if (address === '') return
  const { get } = await import('./seen-node.js')
  const mode = await get(address, '/proxyMode').catch(() => undefined)
  if (mode === undefined) return
  const after = 'A proxy runs here and writes its rules again; stop it, then clean up once more'
  log.warn({ mode, address }, after)
}

/** Most modes do not load without koffi. Its error names modules, and no way out. */
function notLoaded(error: unknown): never {
  if (!isAboutKoffi(error)) throw error
  const reason = `nobody looked, because koffi does not load here; ${installKoffi}, and try again`
  throw new KernelError('unsupported', reason, { cause: error })
}
