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

/** For server-side apply, where the keys are those of the list type, which may be several. */
const listMapKeys: readonly (readonly [path: string, keys: readonly string[]])[] = [
  ['spec.ports', ['port', 'protocol']],
  ['containers.ports', ['containerPort', 'protocol']],
  ['initContainers.ports', ['containerPort', 'protocol']],
]

/** Where in an object a value is. */
export interface Place {
  /** The names of the fields that lead there, without list items. */
  readonly names: readonly string[]
  /** Only the metadata of a custom resource is known; its other lists are replaced as a whole. */
  readonly isCustom: boolean
}

/** The keys that identify an item of the list; undefined for other lists. */
export function listMapKeysOf(place: Place): readonly string[] | undefined {
  if (!isKnown(place)) return undefined
  const several = listMapKeys.find(([suffix]) => endsWith(place.names, suffix))?.[1]
  if (several !== undefined) return several
  const single = mergeKeyOf(place.names)
  return single === undefined ? undefined : [single]
}

export function isPrimitiveSet(place: Place): boolean {
  return isKnown(place) && primitiveSets.some((suffix) => endsWith(place.names, suffix))
}

/** Selectors, which one manager owns as a whole: terms of two authors together mean something else. */
export function isAtomicMap({ names, isCustom }: Place): boolean {
  return !isCustom && (endsWith(names, 'spec.selector') || endsWith(names, 'spec.nodeSelector'))
}

function isKnown({ names, isCustom }: Place): boolean {
  return !isCustom || names[0] === 'metadata'
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

/** The place of the whole object. */
export function rootOf(apiVersion: string): Place {
  const [group = '', version] = apiVersion.split('/')
  return { names: [], isCustom: version !== undefined && !knownGroups.includes(group) }
}

function endsWith(path: readonly string[], suffix: string): boolean {
  const wanted = suffix.split('.')
  return wanted.every((step, index) => path[path.length - wanted.length + index] === step)
}
