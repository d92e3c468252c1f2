import type { Config } from './config.js'
import { gateWarnings } from './feature-gates.js'
import { appendPort } from '../state/ip.js'
import { keyAt, keyEntries } from './keys.js'
import { parseConfigFile } from './file.js'
import type { FlagSettings } from './flags.js'
import type { Origin, Setting, Settings } from './settings.js'
import { placeOf, throwProblems } from './settings.js'
import { validate } from './validate.js'
import { putAt } from './write.js'

export interface LoadedConfig {
  readonly config: Config
  /** The origins of values that are set, by path. */
  readonly origins: ReadonlyMap<string, Origin>
  /** Texts for the log about values that are ignored or have no effect. */
  readonly warnings: readonly string[]
}

/**
 * Makes one checked configuration from the flags and the text of the --config file. With a file only
 * flags marked `overFile` count (section 11); a warning names the others. Throws ConfigError that
 * lists every problem.
 */
export function loadConfig(
  flags: FlagSettings,
  file: { readonly name: string; readonly text: string } | undefined,
): LoadedConfig {
  const parsed = file ? parseConfigFile(file.text, file.name) : undefined
  const settings = new Map<string, Setting>(parsed?.settings)
  const ignored = new Set<string>()
  for (const [path, setting] of flags.settings) {
    if (!file || keyAt(path)?.overFile === true) settings.set(path, setting)
    else if (setting.origin.from === 'flag') ignored.add(`--${setting.origin.flag}`)
  }
  applyPorts(settings, flags, file !== undefined, ignored)
  const config = buildConfig(settings)
  const place = (path: string) => placeOf(path, settings.get(path)?.origin)
  const checked = validate(config, place)
  throwProblems(checked.problems)
  const warnings = [...(parsed?.warnings ?? []), ...flags.warnings, ...checked.warnings]
  if (file && ignored.size > 0) {
    const names = [...ignored].join(', ')
    warnings.push(`with --config these flags are ignored: ${names}; set them in ${file.name}`)
  }
  return {
    config,
    origins: new Map([...settings].map(([path, { origin }]) => [path, origin])),
    warnings: [
      ...warnings,
      ...gateWarnings(config.featureGates).map((gate) => `${place('featureGates')}: ${gate}`),
      ...settingsWithoutEffect(settings, place),
    ],
  }
}

/** The configuration without flags and file. */
export function defaultConfig(): Config {
  return buildConfig(new Map())
}

/** The default configuration with some values replaced, by path; for tests and embedding. */
export function configWith(values: Readonly<Record<string, unknown>>): Config {
  return buildConfig(
    new Map(
      Object.entries(values).map(([path, value]) => [path, { value, origin: { from: 'default' } }]),
    ),
  )
}

function applyPorts(
  settings: Map<string, Setting>,
  { actions }: FlagSettings,
  hasFile: boolean,
  ignored: Set<string>,
): void {
  const bind = settings.get('bindAddress')?.value
  const [any, own] =
    typeof bind === 'string' && bind.includes(':') ? ['::', '::1'] : ['0.0.0.0', '127.0.0.1']
  const servers = [
    ['healthzBindAddress', 'healthz-port', actions.healthzPort, any, 10256],
    ['metricsBindAddress', 'metrics-port', actions.metricsPort, own, 10249],
  ] as const
  for (const [path, flag, port, host, usualPort] of servers) {
    if (port !== undefined && hasFile) ignored.add(`--${flag}`)
    const given = hasFile ? undefined : port
    const set = settings.get(path)
    const origin: Origin =
      set?.origin ?? (given === undefined ? { from: 'default' } : { from: 'flag', flag })
    const address = typeof set?.value === 'string' ? set.value : host
    const value = given === 0 || address === '' ? '' : appendPort(address, given ?? usualPort)
    settings.set(path, { value, origin })
  }
}

function settingsWithoutEffect(settings: Settings, place: (path: string) => string): string[] {
  return [...settings].flatMap(([path, { value }]) => {
    const key = keyAt(path)
    if (key?.noEffect === undefined || JSON.stringify(value) === JSON.stringify(key.initial))
      return []
    return [`${place(path)} has no effect here: ${key.noEffect}`]
  })
}

function buildConfig(settings: Settings): Config {
  const tree: Record<string, unknown> = {}
  for (const [path, key] of keyEntries) {
    putAt(tree, path, settings.get(path)?.value ?? key.initial)
  }
  // Config is the type of the values in this table.
  return freeze(tree) as unknown as Config
}

function freeze<T extends object>(value: T): T {
  for (const part of Object.values(value)) {
    if (typeof part === 'object' && part !== null) freeze(part as object)
  }
  return Object.freeze(value)
}
