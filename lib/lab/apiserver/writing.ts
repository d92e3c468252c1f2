import type { ApiCall } from './api-call.js'
import { withKnownFields } from './field-validation.js'
import { at, isObject, listAt, numberAt, textAt, type Json, type JsonObject } from './json.js'
import { parseObject, type KubeObject } from './object.js'
import { applyJsonPatch } from './patch/json-patch.js'
import { applyServerSide } from './patch/server-side-apply.js'
import { applyMergePatch, applyStrategicMergePatch } from './patch/merge-patch.js'
import { sendObject, viewOf, type Asked } from './reading.js'
import type { DeleteOptions, WriteOptions } from './registry.js'
import { apiVersionOf, collectionOf, shownAs } from './resources.js'
import { scaleOf, withScale } from './scale.js'
import { badRequest, noSuchPath, unsupportedMediaType } from './status.js'

export async function serveCreate(asked: Asked): Promise<void> {
  const { call, target, registry } = asked
  const input = inputOf(asked, await call.readBody())
  sendObject(asked, registry.create(target.kind, input, optionsOf(call)), 201)
}

export async function serveUpdate(asked: Asked): Promise<void> {
  const body = await asked.call.readBody()
  if (asked.target.subresource === 'scale') change(asked, () => body)
  else update(asked, body)
}

/** A wrong body is refused as such, even where the object does not exist. */
function update(asked: Asked, body: Json): void {
  const { call, target, registry } = asked
  const input = inputOf(asked, body)
  sendObject(asked, registry.update(target.kind, input, optionsOf(call, target.subresource)))
}

/** Writes what `changed` makes of the object, or of its scale. */
function change(asked: Asked, changed: (shown: KubeObject) => Json): void {
  const { call, target, name, registry } = asked
  const { kind, namespace, subresource } = target
  const current = registry.get(kind, namespace, name)
  if (subresource === 'scale') {
    const scaled = withScale(current, changed(scaleOf(current)))
    call.send(200, scaleOf(registry.update(kind, scaled, optionsOf(call))))
  } else update(asked, changed(shownAs(kind, current)))
}

const strategicMergeType = 'application/strategic-merge-patch+json'
const patches: Readonly<Record<string, (document: Json, patch: Json) => Json>> = {
  'application/json-patch+json': applyJsonPatch,
  'application/merge-patch+json': applyMergePatch,
  [strategicMergeType]: applyStrategicMergePatch,
}

const applyTypes = ['application/apply-patch+yaml', 'application/apply-patch+json']

/** Server-side apply: creates what is not there. */
async function serveApply(asked: Asked): Promise<void> {
  const { call, target, name, registry } = asked
  const { kind, namespace, subresource } = target
  const manager = call.query.get('fieldManager') ?? ''
  if (manager === '') throw badRequest('fieldManager is required for apply patch')
  const applied = parseObject(inputOf(asked, await call.readBody()))
  if (applied.metadata['managedFields'] !== undefined) {
    throw badRequest('metadata.managedFields must be nil')
  }
  const current = registry.find(kind, namespace, name)
  const applier = { name: manager, time: registry.timestamp(), force: call.isTrue('force') }
  const object = applyServerSide(current && shownAs(kind, current), applied, applier)
  const { fieldManager: _tracked, ...options } = optionsOf(call, subresource)
  if (current) sendObject(asked, registry.update(kind, object, options))
  else sendObject(asked, registry.create(kind, object, options), 201)
}

export async function servePatch(asked: Asked): Promise<void> {
  const { call, target } = asked
  if (applyTypes.includes(call.contentType)) {
    await serveApply(asked)
    return
  }
  const apply = patches[call.contentType]
  const isUnknownMerge = target.kind.isCustom === true && call.contentType === strategicMergeType
  if (apply === undefined || isUnknownMerge) {
    throw unsupportedMediaType(call.contentType, [...Object.keys(patches), ...applyTypes])
  }
  const patch = await call.readBody()
  change(asked, (shown) => apply(shown, patch))
}

export async function serveDelete(asked: Asked): Promise<void> {
  const { call, target, name, registry } = asked
  const { kind, namespace } = target
  const object = registry.delete(kind, namespace, name, await deleteOptionsOf(call))
  const isGone = registry.find(kind, namespace, name) === undefined
  if (!isGone && !call.isDryRun) {
    sendObject(asked, object)
    return
  }
  call.send(200, {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Success',
    details: {
      name,
      ...(kind.group === '' ? {} : { group: kind.group }),
      kind: kind.plural,
      uid: object.metadata.uid,
    },
  })
}

export async function serveDeleteCollection({ call, target, registry }: Asked): Promise<void> {
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
function inputOf({ call, target }: Asked, body: Json): JsonObject {
  if (!isObject(body)) throw badRequest('the body is not a JSON object; send one API object')
  const metadata = body['metadata']
  const given = isObject(metadata) ? metadata : {}
  check('namespace', textAt(given, 'namespace'), target.namespace)
  check('name', textAt(given, 'name'), target.name)
  const { kind, namespace, name } = target
  const input = {
    ...{ apiVersion: apiVersionOf(kind), kind: kind.kind, ...body },
    metadata: {
      ...given,
      ...(namespace === undefined ? {} : { namespace }),
      ...(name === undefined ? {} : { name }),
    },
  }
  return withKnownFields(input, kind.kind, call)
}

function check(what: string, given: string, wanted: string | undefined): void {
  if (given === '' || wanted === undefined || given === wanted) return
  throw badRequest(
    `the ${what} of the provided object does not match the ${what} sent on the request (${given} instead of ${wanted})`,
  )
}
