import type { Key } from './key.js'
import { modeKeys } from './keys-modes.js'
import { nodeKeys } from './keys-node.js'
import { observeKeys } from './keys-observe.js'

/** Every value of the configuration. Parser, flags, help, documents and defaults read this table. */
const keys = { ...nodeKeys, ...modeKeys, ...observeKeys }

export type Keys = typeof keys

export type AnyKey = Key<unknown>

/** The table as entries, in the order of the imported files. */
export const keyEntries: readonly (readonly [path: string, key: AnyKey])[] = Object.entries(keys)

const byPath: ReadonlyMap<string, AnyKey> = new Map(keyEntries)

export const keyAt = (path: string): AnyKey | undefined => byPath.get(path)

/** Paths of sections such as `iptables` or `logging.options`. */
export const sections: ReadonlySet<string> = new Set(
  keyEntries.flatMap(([path]) => {
    const names = path.split('.')
    return names.slice(1).map((_, index) => names.slice(0, index + 1).join('.'))
  }),
)

/** Keys in files of older releases, with advice. kube-proxy 1.36 does not have them. */
export const retiredKeys: Readonly<Record<string, string>> = {
  'conntrack.max': 'use conntrack.maxPerCore and conntrack.min',
  resourceContainer: 'the container runtime sets cgroups',
}

/** Flags of older releases and of libraries, with advice. */
export const retiredFlags: Readonly<Record<string, string>> = {
  'boot-id-file': 'it belonged to a library of kube-proxy',
  'machine-id-file': 'it belonged to a library of kube-proxy',
  'conntrack-max': 'use --conntrack-max-per-core and --conntrack-min',
  'resource-container': 'the container runtime sets cgroups',
  'cleanup-ipvs': '--cleanup removes what any mode has installed',
  'google-json-key': 'it belonged to a library of kube-proxy',
  ...Object.fromEntries(
    [
      'logtostderr',
      'alsologtostderr',
      'stderrthreshold',
      'log-dir',
      'log-file',
      'log-file-max-size',
      'log-backtrace-at',
      'skip-headers',
      'skip-log-headers',
      'add-dir-header',
      'one-output',
    ].map((flag) => [flag, 'the log goes to standard error']),
  ),
}
