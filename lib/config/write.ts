import { stringify } from 'yaml'
import type { Config } from './config.js'
import { apiVersion, kind } from './file.js'
import { keyEntries } from './keys.js'
import { pathKind } from './kinds.js'

/**
 * The configuration as an object of its file: durations as text, sections nested. Keys that
 * kube-proxy does not have can be left out where they have their default. `pathAs` changes paths.
 */
export function configObject(
  config: Config,
  {
    ownDefaults = true,
    pathAs,
  }: { readonly ownDefaults?: boolean; readonly pathAs?: (path: string) => string } = {},
): Record<string, unknown> {
  const root: Record<string, unknown> = { apiVersion, kind }
  for (const [path, key] of [...keyEntries].sort(([left], [right]) => (left < right ? -1 : 1))) {
    const value = valueAt(config, path)
    if (!ownDefaults && key.known !== '1.36' && value === key.initial) continue
    const isPath = key.kind === pathKind && typeof value === 'string' && value !== ''
    putAt(root, path, key.kind.toYaml(isPath && pathAs ? pathAs(value) : value))
  }
  return root
}

/**
 * The text that --write-config-to writes (L23). Keys that kube-proxy does not have are left out
 * where they have their default, so that kube-proxy accepts the file.
 */
export function configYaml(config: Config): string {
  return stringify(configObject(config, { ownDefaults: false }))
}

export function putAt(root: Record<string, unknown>, path: string, value: unknown): void {
  const names = path.split('.')
  const last = names.pop() ?? ''
  let section = root
  for (const name of names) {
    section[name] ??= {}
    section = section[name] as Record<string, unknown>
  }
  section[last] = value
}

export function valueAt(config: Config, path: string): unknown {
  let value: unknown = config
  for (const name of path.split('.')) value = (value as Record<string, unknown>)[name]
  return value
}
