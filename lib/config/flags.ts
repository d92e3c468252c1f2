import type { AnyKey } from './keys.js'
import { keyEntries, retiredFlags } from './keys.js'
import { boolKind, gatesKind, intKind, listKind, pathKind, vmoduleKind } from './kinds.js'
import { notOfKind, type Kind } from './kinds.js'
import type { Setting, Settings } from './settings.js'
import { quote, throwProblems } from './settings.js'

/** The flags of the command line, in their order. */
export type GivenFlags = readonly (readonly [flag: string, text: string])[]

/** Flags that choose an action. They are not part of the configuration. */
export interface Actions {
  /** Path of the configuration file. */
  readonly config: string
  readonly writeConfigTo: string
  readonly cleanup: boolean
  /** Deprecated: the port for a bind address without one; undefined: not given. */
  readonly healthzPort: number | undefined
  readonly metricsPort: number | undefined
}

export interface FlagSettings {
  readonly settings: Settings
  readonly actions: Actions
  readonly warnings: readonly string[]
}

interface ActionFlag {
  readonly flag: string
  readonly kind: Kind<string> | Kind<boolean> | Kind<number>
  readonly doc: string
}

export const actionFlags: readonly ActionFlag[] = [
  { flag: 'config', kind: pathKind, doc: 'Configuration file; changes of it are noticed' },
  {
    flag: 'write-config-to',
    kind: pathKind,
    doc: 'Write the configuration to this file and exit',
  },
  {
    flag: 'cleanup',
    kind: boolKind,
    doc: 'Remove everything that any mode has installed on this node, and exit',
  },
  { flag: 'healthz-port', kind: intKind, doc: 'Deprecated: use --healthz-bind-address; 0: off' },
  { flag: 'metrics-port', kind: intKind, doc: 'Deprecated: use --metrics-bind-address; 0: off' },
]

/** The values that each flag sets. Some flags set a value in several sections. */
const pathsOfFlag = new Map<string, [string, AnyKey][]>()
for (const [path, key] of keyEntries) {
  for (const flag of key.flags) {
    pathsOfFlag.set(flag, [...(pathsOfFlag.get(flag) ?? []), [path, key]])
  }
}

/** Flags that need no value. */
export const bareFlags: ReadonlySet<string> = new Set([
  ...[...pathsOfFlag].flatMap(([flag, [first]]) => (first?.[1].kind === boolKind ? [flag] : [])),
  ...actionFlags.filter(({ kind }) => kind === boolKind).map(({ flag }) => flag),
  'logtostderr',
  'alsologtostderr',
  'skip-headers',
  'skip-log-headers',
  'add-dir-header',
  'one-output',
  'cleanup-ipvs',
])

/** Flags that take the next argument as their value when they have no `=`. */
const valueFlags: ReadonlySet<string> = new Set(
  [
    ...pathsOfFlag.keys(),
    ...actionFlags.map(({ flag }) => flag),
    ...Object.keys(retiredFlags),
  ].filter((flag) => !bareFlags.has(flag)),
)

/** Flags of these kinds add to each other when repeated. For the others the last one counts. */
const accumulates: ReadonlySet<unknown> = new Set([listKind, gatesKind, vmoduleKind])

/**
 * The command line with every flag in the form `--name=value`. It accepts what the flag parser of Go
 * accepts: `-v 2`, `-v=2`, `-v2`, underscores for dashes, boolean flags without a value.
 */
export function normalizeArguments(argv: readonly string[]): string[] {
  const end = argv.indexOf('--')
  const head = end < 0 ? argv : argv.slice(0, end)
  const normalized: string[] = []
  for (const [index, argument] of head.entries()) {
    const short = /^-v(?:=?(\d+))?$/.exec(argument)
    const long = /^--([^=]+)(=.*)?$/s.exec(argument)
    if (short) {
      normalized.push(short[1] === undefined ? '--v' : `--v=${short[1]}`)
    } else if (long && takenAsValue(head[index - 1])) {
      normalized.push(argument)
    } else if (long) {
      const name = (long[1] ?? '').replaceAll('_', '-')
      if (name === 'version') normalized.push(...versionArguments(argument, long[2]))
      else normalized.push(`--${name}${long[2] ?? (bareFlags.has(name) ? '=true' : '')}`)
    } else normalized.push(argument)
  }
  return end < 0 ? normalized : [...normalized, ...argv.slice(end)]
}

/** Kubernetes programs take `--version=true`, `raw`, which prints too, and `false`, which does not. */
function versionArguments(argument: string, value = '=true'): readonly string[] {
  const text = value.slice(1)
  const prints = text === 'raw' || boolKind.fromText(text)
  return prints === undefined ? [argument] : prints ? ['--version'] : []
}

/** Reads the values of flags. Throws ConfigError that names flag and value. */
export function parseFlags(given: GivenFlags): FlagSettings {
  const settings = new Map<string, Setting>()
  const actions: Record<string, unknown> = {}
  const warnings: string[] = []
  const problems: string[] = []
  for (const [flag, text] of given) {
    const action = actionFlags.find((entry) => entry.flag === flag)
    if (action) {
      const value = action.kind.fromText(text)
      if (value === undefined) problems.push(wrongValue(flag, text, action.kind))
      else actions[flag] = value
    } else if (Object.hasOwn(retiredFlags, flag)) {
      warnings.push(`--${flag} has no effect: ${retiredFlags[flag] ?? ''}`)
    }
    for (const [path, key] of pathsOfFlag.get(flag) ?? []) {
      const value = key.kind.fromText(text)
      if (value === undefined) problems.push(wrongValue(flag, text, key.kind))
      else {
        const earlier = accumulates.has(key.kind) ? settings.get(path)?.value : undefined
        settings.set(path, { value: merge(earlier, value), origin: { from: 'flag', flag } })
      }
    }
  }
  throwProblems([...new Set(problems)])
  return { settings, actions: actionsOf(actions), warnings }
}

function actionsOf(values: Readonly<Record<string, unknown>>): Actions {
  const text = (flag: string) => (typeof values[flag] === 'string' ? values[flag] : '')
  const port = (flag: string) => (typeof values[flag] === 'number' ? values[flag] : undefined)
  return {
    config: text('config'),
    writeConfigTo: text('write-config-to'),
    cleanup: values['cleanup'] === true,
    healthzPort: port('healthz-port'),
    metricsPort: port('metrics-port'),
  }
}

function wrongValue(flag: string, text: string, kind: Kind<unknown>): string {
  return notOfKind(`--${flag}: ${quote(text)}`, text, kind)
}

function merge(earlier: unknown, value: unknown): unknown {
  if (earlier === undefined) return value
  if (Array.isArray(earlier) && Array.isArray(value)) return (earlier as unknown[]).concat(value)
  return { ...(earlier as object), ...(value as object) }
}

/** Whether the argument before is a flag that takes the next argument as its value. */
function takenAsValue(previous: string | undefined): boolean {
  const name = /^--([^=]+)$/.exec(previous ?? '')?.[1]?.replaceAll('_', '-')
  return name !== undefined && valueFlags.has(name)
}
