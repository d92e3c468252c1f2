import { readFileSync, readdirSync } from 'node:fs'
import { parse } from 'yaml'
import type { ModeName } from '../../lib/config/config.js'
import type { DetectLocal } from '../../lib/state/node-view.js'
import type { IpFamily } from '../../lib/state/ip.js'
import { isModeName } from '../../lib/modes/registry.js'
import { bridgeName, places, ranges } from '../../lib/lab/world/topology.js'
import type { Place } from '../../lib/lab/world/topology.js'
import { serviceRanges, targets } from './case.js'
import type {
  Case,
  CaseSettings,
  Client,
  Difference,
  Flow,
  Gets,
  ServiceRange,
  ServiceShorthand,
  Source,
  Step,
  Target,
} from './case.js'

type Raw = Readonly<Record<string, unknown>>

/** By folder. All cases together are a quarter of a second of YAML. */
const casesByFolder = new Map<string, readonly Case[]>()

/** The cases of a folder, read once. A mistake in a file is an error. */
export function readCases(folder: string): readonly Case[] {
  const cases = casesByFolder.get(folder) ?? parseFolder(folder)
  casesByFolder.set(folder, cases)
  return cases
}

function parseFolder(folder: string): readonly Case[] {
  return readdirSync(folder)
    .filter((file) => file.endsWith('.yaml'))
    .sort()
    .flatMap((file) => {
      const topic = file.slice(0, -'.yaml'.length)
      return parseCases(topic, readFileSync(`${folder}/${file}`, 'utf8'))
    })
}

export function parseCases(topic: string, text: string): readonly Case[] {
  const cases = list(parse(text, { merge: true }), topic).map((raw) => parseCase(topic, raw))
  const names = new Set(cases.map(({ name }) => name))
  if (names.size !== cases.length) throw new Error(`${topic}: two cases have the same name`)
  return cases
}

function parseCase(topic: string, raw: unknown): Case {
  const where = `${topic}: ${String(record(raw, topic).case)}`
  const source = known(raw, where, ['case', 'families', 'settings', 'steps', ...stepKeys])
  const families = optionalFamilies(source.families) ?? ['IPv4', 'IPv6']
  // A case with one step may leave out `steps`.
  const steps = source.steps === undefined ? [without(source)] : list(source.steps, where)
  if (!/^(([A-Z]{1,2}\d\d|e2e \w+\.go:\d+) ?)+: \S/.test(String(source.case))) {
    throw new Error(`${where}: a case's name starts with the IDs it covers and a colon`)
  }
  const parsed = steps.map((step, index) =>
    parseStep(`${where}, step ${index + 1}`, step, families),
  )
  if (!parsed.some((step) => step.flows.length + step.meanwhile.length > 0))
    throw new Error(`${where}: expects no flow`)
  return {
    topic,
    name: String(source.case),
    families,
    settings: parseSettings(where, source.settings),
    steps: parsed,
  }
}

const stepKeys = [
  ...['title', 'services', 'serviceCidrs', 'zone', 'restart', 'flush', 'wait', 'within'],
  ...['meanwhile', 'flows'],
]

function without(source: Raw): Raw {
  return Object.fromEntries(Object.entries(source).filter(([key]) => stepKeys.includes(key)))
}

function parseSettings(where: string, raw: unknown): CaseSettings {
  const keys = [
    'masqueradeAll',
    'nodePortAddresses',
    'localhostNodePorts',
    'detectLocal',
    'externalIPs',
  ]
  const source = known(raw ?? {}, where, keys)
  return {
    masqueradeAll: source.masqueradeAll === true,
    nodePortAddresses: list(source.nodePortAddresses ?? ['all', 'localhost'], where).map(String),
    localhostNodePorts: source.localhostNodePorts !== false,
    allowsExternalIps: source.externalIPs !== false,
    detectLocal: detectLocal(where, source.detectLocal ?? 'node-cidr'),
  }
}

function detectLocal(where: string, word: unknown): DetectLocal {
  switch (word) {
    case 'node-cidr':
      return { mode: 'NodeCIDR' }
    case 'cluster-cidr':
      return { mode: 'ClusterCIDR', cidrs: Object.values(ranges.clusterPods) }
    case 'bridge':
      return { mode: 'BridgeInterface', name: bridgeName }
    case 'prefix':
      return { mode: 'InterfaceNamePrefix', prefix: bridgeName.slice(0, -1) }
    case 'none':
      return { mode: 'ClusterCIDR', cidrs: [] }
    default:
      throw new Error(`${where}: detectLocal ${String(word)} is not known`)
  }
}

function parseStep(where: string, raw: unknown, families: readonly IpFamily[]): Step {
  const source = known(raw, where, stepKeys)
  const services = record(source.services ?? {}, where)
  for (const [name, service] of Object.entries(services)) {
    if (service === null) continue
    const { range } = known(service, `${where}, service ${name}`, serviceKeys)
    if (range !== undefined) parseRange(where, range)
  }
  return {
    title: scalar(source.title ?? ''),
    services: services as Record<string, ServiceShorthand | null>,
    zone: source.zone === undefined || source.zone === null ? source.zone : scalar(source.zone),
    serviceCidrs:
      source.serviceCidrs === undefined
        ? undefined
        : list(source.serviceCidrs, where).map((word) => parseRange(where, word)),
    restart: source.restart === true,
    flush: source.flush === true,
    withinMs: Number(source.within ?? 0),
    meanwhile: list(source.meanwhile ?? [], where).map((flow, index) =>
      parseFlow(`${where}, meanwhile ${index + 1}`, flow, families),
    ),
    waitMs: Number(source.wait ?? 0),
    flows: list(source.flows ?? [], where).map((flow, index) =>
      parseFlow(`${where}, flow ${index + 1}`, flow, families),
    ),
  }
}

const serviceKeys = [
  ...['type', 'ports', 'families', 'range', 'nodePort', 'loadBalancer', 'externalIPs', 'affinity'],
  ...['internalTrafficPolicy', 'externalTrafficPolicy', 'sourceRanges', 'endpoints', 'slices'],
  ...['labels', 'annotations', 'sliceLabels', 'spec'],
]

const flowKeys = [
  ...['from', 'to', 'service', 'port', 'portNumber', 'families', 'gets', 'source', 'evenly'],
  ...['sticky', 'keep', 'use', 'stray', 'ping', 'count', 'payload', 'halfClose', 'differs'],
]

function parseFlow(where: string, raw: unknown, families: readonly IpFamily[]): Flow {
  const source = known(raw, where, flowKeys)
  const text = (value: unknown) => (value === undefined ? undefined : scalar(value))
  const number = (value: unknown) => (value === undefined ? undefined : Number(value))
  return {
    from: words(source.from).map((word) => parseClient(where, word)),
    to: words(source.to ?? 'cluster').map((word) => parseTarget(where, word)),
    service: scalar(source.service ?? 'web'),
    port: text(source.port),
    portNumber: number(source.portNumber),
    families: optionalFamilies(source.families) ?? families,
    gets: parseGets(where, source.gets),
    source: parseSource(where, source.source),
    evenly: source.evenly === true,
    sticky:
      source.sticky === 'same' || source.sticky === 'some-moved'
        ? source.sticky
        : source.sticky === true,
    keep: text(source.keep),
    use: text(source.use),
    stray: source.stray === true,
    ping: source.ping === true,
    count: number(source.count),
    payloadBytes: number(source.payload),
    halfClose: source.halfClose === true,
    differs: Object.fromEntries(
      Object.entries(record(source.differs ?? {}, where)).map(([mode, difference]) => [
        parseMode(where, mode),
        parseDifference(where, difference),
      ]),
    ),
  }
}

function parseDifference(where: string, raw: unknown): Difference {
  const source = known(raw, where, ['because', 'gets', 'source', 'sticky'])
  if (typeof source.because !== 'string') throw new Error(`${where}: a difference needs a reason`)
  return {
    because: source.because,
    ...(source.gets === undefined ? {} : { gets: parseGets(where, source.gets) }),
    ...(source.source === undefined
      ? {}
      : { source: source.source === null ? null : (parseSource(where, source.source) ?? null) }),
    ...(source.sticky === undefined ? {} : { sticky: source.sticky === true }),
  }
}

function parseMode(where: string, word: string): ModeName {
  if (isModeName(word)) {
    return word
  }
  throw new Error(`${where}: mode ${word} is not known`)
}

function parseClient(where: string, word: string): Client {
  const [, name, number] = /^(.*?)(?:#(\d))?$/.exec(word) ?? []
  return { place: parsePlace(where, name ?? ''), addressIndex: Number(number ?? 1) - 1 }
}

function parsePlace(where: string, word: string): Place {
  const place = places.find((candidate) => candidate === word)
  if (!place) throw new Error(`${where}: nobody is called ${word}`)
  return place
}

function parseTarget(where: string, word: string): Target {
  const target = targets.find((candidate) => candidate === word)
  if (!target) throw new Error(`${where}: no target is called ${word}`)
  return target
}

function parseRange(where: string, word: unknown): ServiceRange {
  const range = serviceRanges.find((candidate) => candidate === word)
  if (!range) throw new Error(`${where}: no range of Services is called ${String(word)}`)
  return range
}

function parseGets(where: string, value: unknown): Gets {
  switch (value) {
    case 'refused':
    case 'dropped':
    case 'closed':
    case 'unreachable':
    case 'no-reply':
    case 'answered':
    case 'same':
    case 'whatever':
      return value
    default:
      if (value === undefined) throw new Error(`${where}: says nothing about what it gets`)
      return words(value).map((word) => parsePlace(where, word))
  }
}

function parseSource(where: string, value: unknown): Source | undefined {
  if (value === undefined || value === 'kept') return value
  if (value === 'masqueraded' || value === 'announced') return value
  throw new Error(`${where}: source ${scalar(value)} is neither kept, masqueraded nor announced`)
}

function optionalFamilies(value: unknown): readonly IpFamily[] | undefined {
  return value === undefined
    ? undefined
    : words(value).map((word) => (word === 'IPv4' ? 'IPv4' : 'IPv6'))
}

function words(value: unknown): readonly string[] {
  return Array.isArray(value) ? value.map(scalar) : [scalar(value)]
}

function scalar(value: unknown): string {
  if (typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean') {
    return String(value)
  }
  throw new Error(`a word is expected, not ${JSON.stringify(value)}`)
}

function list(value: unknown, where: string): readonly unknown[] {
  if (!Array.isArray(value)) throw new Error(`${where}: a list is expected`)
  return value
}

function record(value: unknown, where: string): Raw {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new Error(`${where}: a mapping is expected`)
  }
  return value as Raw
}

/** An unknown key is an error, because a misspelt one would test nothing. */
function known(value: unknown, where: string, keys: readonly string[]): Raw {
  const found = record(value, where)
  const unknown = Object.keys(found).find((key) => !keys.includes(key))
  if (unknown !== undefined) throw new Error(`${where}: key ${unknown} is not known`)
  return found
}
