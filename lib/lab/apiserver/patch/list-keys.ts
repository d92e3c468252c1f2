/**
 * The lists of the API that merge as maps or sets, and the keys that identify their items. A list
 * that is not here is replaced as a whole.
 */

/** For strategic merge patches; the last names of the path, joined by dots. */
const mergeKeys: readonly (readonly [path: string, key: string])[] = [
  ['spec.ports', 'port'],
  ['containers', 'name'],
  ['initContainers', 'name'],
  ['ephemeralContainers', 'name'],
  ['volumes', 'name'],
  ['volumeMounts', 'mountPath'],
  ['volumeDevices', 'devicePath'],
  ['env', 'name'],
  ['containers.ports', 'containerPort'],
  ['initContainers.ports', 'containerPort'],
  ['imagePullSecrets', 'name'],
  ['secrets', 'name'],
  ['hostAliases', 'ip'],
  ['topologySpreadConstraints', 'topologyKey'],
  ['conditions', 'type'],
  ['podIPs', 'ip'],
  ['hostIPs', 'ip'],
  ['status.addresses', 'type'],
  ['ownerReferences', 'uid'],
  ['subsets.ports', 'port'],
]

/** Lists of plain values that merge as sets. */
const primitiveSets: readonly string[] = ['finalizers', 'podCIDRs']

export function mergeKeyOf(path: readonly string[]): string | undefined {
  return mergeKeys.find(([suffix]) => endsWith(path, suffix))?.[1]
}

function isPrimitiveSet(path: readonly string[]): boolean {
  return primitiveSets.some((suffix) => endsWith(path, suffix))
}

/** For server-side apply, where the keys are those of the list type, which may be several. */
const listMapKeys: readonly (readonly [path: string, keys: readonly string[]])[] = [
  ['spec.ports', ['port', 'protocol']],
  ['containers.ports', ['containerPort', 'protocol']],
  ['initContainers.ports', ['containerPort', 'protocol']],
]

function listMapKeysOf(path: readonly string[]): readonly string[] | undefined {
  const several = listMapKeys.find(([suffix]) => endsWith(path, suffix))?.[1]
  if (several !== undefined) return several
  const single = mergeKeyOf(path)
  return single === undefined ? undefined : [single]
}

/** Selectors, which one manager owns as a whole: terms of two authors together mean something else. */
function isAtomicMap(path: readonly string[]): boolean {
  return endsWith(path, 'spec.selector') || endsWith(path, 'spec.nodeSelector')
}

/** What is known about the lists and maps of one object. */
export interface ListRules {
  /** The keys that identify an item of the list; undefined for other lists. */
  readonly listMapKeysOf: (path: readonly string[]) => readonly string[] | undefined
  readonly isPrimitiveSet: (path: readonly string[]) => boolean
  readonly isAtomicMap: (path: readonly string[]) => boolean
}

export const knownLists: ListRules = { listMapKeysOf, isPrimitiveSet, isAtomicMap }

/** Only the metadata of a custom resource is known; its other lists are replaced as a whole. */
const metadataLists: ListRules = {
  listMapKeysOf: (path) => (path[0] === 'metadata' ? listMapKeysOf(path) : undefined),
  isPrimitiveSet: (path) => path[0] === 'metadata' && isPrimitiveSet(path),
  isAtomicMap: () => false,
}

const knownGroups = [
  'apps',
  'autoscaling',
  'batch',
  'coordination.k8s.io',
  'discovery.k8s.io',
  'events.k8s.io',
  'networking.k8s.io',
  'policy',
  'rbac.authorization.k8s.io',
]

export function listRulesOf(apiVersion: string): ListRules {
  const [group = '', version] = apiVersion.split('/')
  return version === undefined || knownGroups.includes(group) ? knownLists : metadataLists
}

function endsWith(path: readonly string[], suffix: string): boolean {
  const wanted = suffix.split('.')
  return wanted.every((step, index) => path[path.length - wanted.length + index] === step)
}
