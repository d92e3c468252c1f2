import type { JsonObject } from './json.js'
import { apiVersionOf, type ResourceKind } from './resources.js'

/** Discovery tells clients which kinds the server has. */

const verbs = 'create delete deletecollection get list patch update watch'.split(' ')
const scale = { group: 'autoscaling', version: 'v1', kind: 'Scale' }
const subresourceVerbs = ['get', 'patch', 'update'] as const

export const coreVersions: JsonObject = {
  kind: 'APIVersions',
  versions: ['v1'],
  serverAddressByClientCIDRs: [],
}

export function groupList(resources: readonly ResourceKind[]): JsonObject {
  const groups = groupsOf(resources).filter((group) => group !== '')
  return {
    kind: 'APIGroupList',
    apiVersion: 'v1',
    groups: groups.map((group) => groupEntry(group, resources)),
  }
}

export function groupOf(group: string, resources: readonly ResourceKind[]): JsonObject | undefined {
  if (group === '' || !groupsOf(resources).includes(group)) return undefined
  return { kind: 'APIGroup', apiVersion: 'v1', ...groupEntry(group, resources) }
}

export function resourceList(
  apiVersion: string,
  resources: readonly ResourceKind[],
): JsonObject | undefined {
  const kinds = resources.filter((kind) => apiVersionOf(kind) === apiVersion)
  if (kinds.length === 0) return undefined
  return {
    kind: 'APIResourceList',
    apiVersion: 'v1',
    groupVersion: apiVersion,
    resources: kinds.flatMap((kind) => [
      {
        name: kind.plural,
        singularName: kind.singular,
        namespaced: kind.namespaced,
        kind: kind.kind,
        verbs,
        shortNames: kind.shortNames,
        ...(kind.categories.length > 0 ? { categories: kind.categories } : {}),
      },
      ...kind.subresources.map((subresource) => ({
        name: `${kind.plural}/${subresource}`,
        singularName: '',
        namespaced: kind.namespaced,
        ...(subresource === 'scale' ? scale : { kind: kind.kind }),
        verbs: subresourceVerbs,
      })),
    ]),
  }
}

/** Everything in one answer: what kubectl asks for first since 1.26. */
export function aggregatedDiscovery(
  root: 'api' | 'apis',
  version: string,
  resources: readonly ResourceKind[],
): JsonObject {
  const groups = groupsOf(resources).filter((group) => (group === '') === (root === 'api'))
  return {
    kind: 'APIGroupDiscoveryList',
    apiVersion: `apidiscovery.k8s.io/${version}`,
    metadata: {},
    items: groups.map((group) => ({
      metadata: { name: group },
      versions: versionsOf(group, resources).map((each) => ({
        version: each,
        freshness: 'Current',
        resources: resources
          .filter((kind) => kind.group === group && kind.version === each)
          .map(discoveryOf),
      })),
    })),
  }
}

function discoveryOf(kind: ResourceKind): JsonObject {
  const responseKind = { group: kind.group, version: kind.version, kind: kind.kind }
  return {
    resource: kind.plural,
    responseKind,
    scope: kind.namespaced ? 'Namespaced' : 'Cluster',
    singularResource: kind.singular,
    verbs,
    shortNames: kind.shortNames,
    ...(kind.categories.length > 0 ? { categories: kind.categories } : {}),
    subresources: kind.subresources.map((subresource) => ({
      subresource,
      responseKind: subresource === 'scale' ? scale : responseKind,
      verbs: subresourceVerbs,
    })),
  }
}

function groupEntry(group: string, resources: readonly ResourceKind[]): JsonObject {
  const versions = versionsOf(group, resources).map((version) => ({
    groupVersion: `${group}/${version}`,
    version,
  }))
  return { name: group, versions, preferredVersion: versions[0] }
}

function groupsOf(resources: readonly ResourceKind[]): readonly string[] {
  return [...new Set(resources.map((kind) => kind.group))]
}

function versionsOf(group: string, resources: readonly ResourceKind[]): readonly string[] {
  const ofGroup = resources.filter((kind) => kind.group === group)
  return [...new Set(ofGroup.map((kind) => kind.version))].sort(byMaturity)
}

/** Sorts as in v2, v1, v1beta2, v1alpha1: clients take the first one. */
function byMaturity(left: string, right: string): number {
  const stages = ['alpha', 'beta', undefined]
  const rankOf = (version: string): readonly [number, number, number] => {
    const [, major, stage, minor = 0] = /^v(\d+)(?:(alpha|beta)(\d+))?$/.exec(version) ?? []
    return major === undefined ? [-1, 0, 0] : [stages.indexOf(stage), Number(major), Number(minor)]
  }
  const ranks = rankOf(right)
  const difference = rankOf(left).map((rank, index) => (ranks[index] ?? 0) - rank)
  return difference.find((each) => each !== 0) ?? left.localeCompare(right)
}
