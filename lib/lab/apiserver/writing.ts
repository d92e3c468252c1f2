import type { ApiCall } from './api-call.js'
import { checkFields } from './field-validation.js'
import { at, isObject, listAt, numberAt, textAt, type Json, type JsonObject } from './json.js'
import { parseObject, type KubeObject } from './object.js'
import { applyJsonPatch } from './patch/json-patch.js'
import { applyServerSide } from './patch/server-side-apply.js'
import { applyMergePatch, applyStrategicMergePatch } from './patch/merge-patch.js'
import { sendObject, viewOf } from './reading.js'
import type { DeleteOptions, Registry, WriteOptions } from './registry.js'
import type { Target } from './target.js'
import { apiVersionOf, collectionOf, shownAs, type ResourceKind } from './resources.js'
import { scaleOf, withScale } from './scale.js'
import { badRequest, noSuchPath, unsupportedMediaType } from './status.js'

/** A target that names one object. */
interface NamedTarget extends Target {
  readonly name: string
}

export async function serveCreate(
  call: ApiCall,
  target: Target,
  registry: Registry,
): Promise<void> {
  const input = inScope(await call.readBody(), target)
  checkFields(input, target.kind.kind, call)
  const object = registry.create(target.kind, input, optionsOf(call))
  sendObject(call, object, { kind: target.kind, code: 201, now: registry.now() })
}

export async function serveUpdate(
  call: ApiCall,
  target: NamedTarget,
  registry: Registry,
): Promise<void> {
  const body = await call.readBody()
  if (target.subresource === 'scale') {
    const current = registry.get(target.kind, target.namespace, target.name)
    sendScale(call, registry.update(target.kind, withScale(current, body), optionsOf(call)))
    return
  }
  const input = inScope(body, target)
  checkFields(input, target.kind.kind, call)
  const object = registry.update(target.kind, input, optionsOf(call, target.subresource))
  sendObject(call, object, { kind: target.kind, code: 200, now: registry.now() })
}

const strategicMergeType = 'application/strategic-merge-patch+json'
const patches: Readonly<Record<string, (document: Json, patch: Json) => Json>> = {
  'application/json-patch+json': applyJsonPatch,
  'application/merge-patch+json': applyMergePatch,
  [strategicMergeType]: applyStrategicMergePatch,
}

const applyTypes = ['application/apply-patch+yaml', 'application/apply-patch+json']

/** Server-side apply: creates what is not there. */
async function serveApply(call: ApiCall, target: NamedTarget, registry: Registry): Promise<void> {
  const { kind, namespace, name, subresource } = target
  const manager = call.query.get('fieldManager') ?? ''
  if (manager === '') throw badRequest('fieldManager is required for apply patch')
  const applied = parseObject(inScope(await call.readBody(), target))
  checkFields(applied, kind.kind, call)
  if (applied.metadata['managedFields'] !== undefined) {
    throw badRequest('metadata.managedFields must be nil')
  }
  const current = registry.find(kind, namespace, name)
  const applier = { name: manager, time: registry.timestamp(), force: call.isTrue('force') }
  const object = applyServerSide(current && shownAs(kind, current), applied, applier)
  const { fieldManager: _tracked, ...options } = optionsOf(call, subresource)
  const written =
    current === undefined
      ? registry.create(kind, object, options)
      : registry.update(kind, object, options)
  sendObject(call, written, {
    kind,
    code: current === undefined ? 201 : 200,
    now: registry.now(),
  })
}

export async function servePatch(
  call: ApiCall,
  target: NamedTarget,
  registry: Registry,
): Promise<void> {
  if (applyTypes.includes(call.contentType)) {
    await serveApply(call, target, registry)
    return
  }
  const apply = patches[call.contentType]
  const isUnknownMerge = target.kind.isCustom === true && call.contentType === strategicMergeType
  if (apply === undefined || isUnknownMerge) {
    throw unsupportedMediaType(call.contentType, [...Object.keys(patches), ...applyTypes])
  }
  const patch = await call.readBody()
  const current = registry.get(target.kind, target.namespace, target.name)
  if (target.subresource === 'scale') {
    const scaled = withScale(current, apply(scaleOf(current), patch))
    sendScale(call, registry.update(target.kind, scaled, optionsOf(call)))
    return
  }
  const input = inScope(apply(shownAs(target.kind, current), patch), target)
  checkFields(input, target.kind.kind, call)
  const object = registry.update(target.kind, input, optionsOf(call, target.subresource))
  sendObject(call, object, { kind: target.kind, code: 200, now: registry.now() })
}

export async function serveDelete(
  call: ApiCall,
  target: NamedTarget,
  registry: Registry,
): Promise<void> {
  const options = await deleteOptionsOf(call)
  const object = registry.delete(target.kind, target.namespace, target.name, options)
  const isGone = registry.find(target.kind, target.namespace, target.name) === undefined
  if (!isGone && !call.isDryRun) {
    sendObject(call, object, { kind: target.kind, code: 200, now: registry.now() })
    return
  }
  call.send(200, {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Success',
    details: {
      name: target.name,
      ...(target.kind.group === '' ? {} : { group: target.kind.group }),
      kind: target.kind.plural,
      uid: object.metadata.uid,
    },
  })
}

export async function serveDeleteCollection(
  call: ApiCall,
  target: Target,
  registry: Registry,
): Promise<void> {
  const options = await deleteOptionsOf(call)
  const { matches } = viewOf(call, target)
  const doomed = registry.store.list(collectionOf(target.kind)).filter(matches)
  const items = doomed.map(({ metadata }) =>
    registry.delete(target.kind, metadata.namespace, metadata.name, options),
  )
  call.send(200, {
    kind: `${target.kind.kind}List`,
    apiVersion: apiVersionOf(target.kind),
    metadata: { resourceVersion: String(registry.store.version) },
    items: items.map((object) => shownAs(target.kind, object)),
  })
}

export function sendScale(call: ApiCall, object: KubeObject): void {
  call.send(200, scaleOf(object))
}

function optionsOf(call: ApiCall, subresource?: string): WriteOptions {
  if (subresource !== undefined && subresource !== 'status') throw noSuchPath()
  return {
    dryRun: call.isDryRun,
    warn: call.warn,
    fieldManager: managerOf(call),
    ...(subresource === undefined ? {} : { subresource }),
  }
}

/** The field manager: named by the request, else the first part of the client's name. */
function managerOf(call: ApiCall): string {
  const agent = call.request.headers['user-agent'] ?? 'unknown'
  return call.query.get('fieldManager') ?? agent.split('/')[0] ?? agent
}

async function deleteOptionsOf(call: ApiCall): Promise<DeleteOptions> {
  const body = await call.readBody()
  const grace =
    numberAt(body, 'gracePeriodSeconds') ?? numberOrNothing(call.query.get('gracePeriodSeconds'))
  const policy = textAt(body, 'propagationPolicy') || call.query.get('propagationPolicy')
  if (policy === 'Foreground') {
    call.warn('propagationPolicy Foreground is served as Background: there are no finalizers')
  }
  const uid = textAt(body, 'preconditions', 'uid')
  const resourceVersion = textAt(body, 'preconditions', 'resourceVersion')
  return {
    dryRun: call.isDryRun || listAt(body, 'dryRun').includes('All'),
    orphans: policy === 'Orphan' || at(body, 'orphanDependents') === true,
    ...(grace === undefined ? {} : { gracePeriodSeconds: grace }),
    ...(uid === '' ? {} : { uid }),
    ...(resourceVersion === '' ? {} : { resourceVersion }),
  }
}

function numberOrNothing(text: string | null): number | undefined {
  return text === null || !/^\d{1,9}$/.test(text) ? undefined : Number(text)
}

/** The body with namespace and name from the path. Its own must not differ from them. */
function inScope(body: Json, target: Target): JsonObject {
  if (!isObject(body)) throw badRequest('the body is not a JSON object; send one API object')
  const metadata = body['metadata']
  const given = isObject(metadata) ? metadata : {}
  check('namespace', textAt(given, 'namespace'), target.namespace)
  check('name', textAt(given, 'name'), target.name)
  return {
    ...named(body, target.kind),
    metadata: {
      ...given,
      ...(target.namespace === undefined ? {} : { namespace: target.namespace }),
      ...(target.name === undefined ? {} : { name: target.name }),
    },
  }
}

function named(body: JsonObject, kind: ResourceKind): JsonObject {
  return { apiVersion: apiVersionOf(kind), kind: kind.kind, ...body }
}

function check(what: string, given: string, wanted: string | undefined): void {
  if (given === '' || wanted === undefined || given === wanted) return
  throw badRequest(
    `the ${what} of the provided object does not match the ${what} sent on the request (${given} instead of ${wanted})`,
  )
}
