import { attachedPrograms, mapsOfProgram } from '../../kernel/bpf/attached.js'
import type { BpfMap } from '../../kernel/bpf/map.js'
import type { Hook } from '../../kernel/bpf/program.js'
import { networkCookie } from '../../kernel/network-namespaces.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import { hostPort, type IpFamily } from '../../state/ip.js'
import { ownerText, type Difference } from '../difference.js'
import { frontendKey, nodeAddressKey, hostOnly } from './frontend-layout.js'
import {
  memberKey,
  memberValues,
  noService,
  number32,
  readBackend,
  readMemberKey,
  readServiceWord,
  rememberedIn,
  service,
  targetId,
  type Target,
} from './layout.js'
import { connectPlace, mapNames, programPrefix } from './names.js'
import { isOfOtherNetwork } from './network-note.js'
import type { Frontend, SocketPlan, TargetList } from './plan.js'
import { socketHooks } from './programs/programs.js'
import type { FamilyMaps } from './programs/view.js'
import { entryText, frontendText, leadText } from './render.js'

type Tables = Readonly<Record<keyof FamilyMaps, BpfMap>>

const place = connectPlace

/** Looks for the programs of a family, and compares a plan with the maps that they read. */
export function socketDifferences(
  plan: SocketPlan,
  calls: SystemCalls,
  cgroup: number,
): readonly Difference[] {
  const program = programAt(plan.family === 'IPv4' ? 'connect4' : 'connect6', calls, cgroup)
  const maps = program ? mapsOfProgram(calls, program.id) : []
  try {
    const tables = tablesIn(maps)
    if (tables) return [...missingPrograms(plan.family, calls, cgroup), ...compare(plan, tables)]
    const expected = 'the socket programs of ebpf mode'
    return [{ place, expected, found: undefined, owner: '', isWhole: true }]
  } finally {
    for (const map of maps) map.close()
  }
}

/** Programs without a family in their name serve both. */
function missingPrograms(
  family: IpFamily,
  calls: SystemCalls,
  cgroup: number,
): readonly Difference[] {
  const ofOther = family === 'IPv4' ? '6' : '4'
  return socketHooks
    .filter((hook) => !hook.endsWith(ofOther) && !programAt(hook, calls, cgroup))
    .map((hook) => {
      const expected = `the socket program at ${hook}`
      return { place, expected, found: undefined, owner: '' }
    })
}

function programAt(hook: Hook, calls: SystemCalls, cgroup: number) {
  const network = networkCookie()
  return attachedPrograms(calls, cgroup, hook).find(
    ({ id, name }) => name.startsWith(programPrefix) && !isOfOtherNetwork(calls, id, network),
  )
}

/**
 * Finds the maps of one family in its own program, as that of the other may be missing or another
 * one's. The IPv6 program reads the maps of both families, those of IPv6 last.
 */
function tablesIn(maps: readonly BpfMap[]): Tables | undefined {
  const named = (name: string) => maps.findLast(({ spec }) => spec.name === name.slice(0, 15))
  const frontends = named(mapNames.frontends)
  const services = named(mapNames.services)
  const backends = named(mapNames.backends)
  const members = named(mapNames.members)
  return frontends && services && backends && members
    ? { frontends, services, backends, members }
    : undefined
}

function compare(plan: SocketPlan, tables: Tables): readonly Difference[] {
  const { family } = plan
  const found = new Map(
    tables.frontends
      .entries()
      .map(([key, value]) => [key.toString('hex'), value.readUInt32LE(0)] as const),
  )
  const differences: Difference[] = []
  const take = (key: Buffer) => {
    const text = key.toString('hex')
    const value = found.get(text)
    found.delete(text)
    return value
  }
  const lists = new Map(
    [...plan.parts.values()].flatMap(({ targets }) => targets.map((each) => [each.id, each])),
  )
  for (const [first] of plan.frontends.values()) {
    if (!first) continue
    const slot = take(frontendKey(family, first))
    const expected = entryText(first, lists.get(first.targets))
    const seen = slot === undefined ? undefined : foundText(family, first, tables, slot)
    const owner = ownerText(first.owner)
    if (seen !== expected) differences.push({ place, expected, found: seen, owner })
  }
  for (const each of plan.nodeAddresses) {
    const expected = `node address ${each.address}`
    const value = take(nodeAddressKey(family, each))
    if (value === (each.hostOnly ? hostOnly : 0)) continue
    const seen = value === undefined ? undefined : `${expected} of another kind`
    differences.push({ place, expected, found: seen, owner: '' })
  }
  for (const key of found.keys()) {
    differences.push({ place, expected: undefined, found: `entry ${key}`, owner: '' })
  }
  return [...differences, ...compareMembers(family, [...lists.values()], tables)]
}

function compareMembers(
  family: IpFamily,
  lists: readonly TargetList[],
  { members }: Tables,
): readonly Difference[] {
  const found = new Map(members.entries().map(([key, value]) => [key.toString('hex'), value[0]]))
  const names = new Map(lists.map(({ id }) => [targetId(id), id]))
  // Two lists may have one number. Then either value may be there.
  const expected = new Map<string, Map<number | undefined, string>>()
  for (const list of lists) {
    for (const [endpoint, value] of rememberedIn(list)) {
      const key = memberKey(family, targetId(list.id), endpoint).toString('hex')
      const texts = expected.get(key) ?? new Map<number | undefined, string>()
      expected.set(key, texts.set(value, memberText(list.id, endpoint, value)))
    }
  }
  return [...new Set([...expected.keys(), ...found.keys()])].flatMap((hex) => {
    const [texts, value] = [expected.get(hex), found.get(hex)]
    if (texts?.has(value)) return []
    const { id, endpoint } = readMemberKey(family, Buffer.from(hex, 'hex'))
    const name = names.get(id) ?? `number ${id}`
    const seen = value === undefined ? undefined : memberText(name, endpoint, value)
    const [text] = texts?.values() ?? []
    return [{ place, expected: text, found: seen, owner: '' }]
  })
}

function memberText(list: string, { ip, port }: Target, value: number): string {
  const who = value === memberValues.takesClients ? 'clients' : 'only open sockets'
  return `${hostPort(ip, port)} that ${who} of service ${list} may keep`
}

function foundText(family: IpFamily, frontend: Frontend, tables: Tables, slot: number): string {
  const bytes = tables.services.lookup(number32(slot))
  const found = bytes === undefined ? noService : readServiceWord(bytes.readBigUInt64LE(0))
  const affinitySeconds = bytes?.readUInt32LE(service.affinitySeconds) ?? 0
  const { first, count, tag } = found
  const endpoints: string[] = []
  for (let index = 0; index < count; index++) {
    const entry = tables.backends.lookup(number32(first + index))
    const backend = entry && readBackend(family, entry)
    endpoints.push(backend?.tag === tag ? hostPort(backend.ip, backend.port) : 'nothing')
  }
  const isOwn = bytes?.readUInt32LE(service.id) === targetId(frontend.targets)
  const text = `${frontendText(frontend)} -> ${leadText({ ...found, affinitySeconds }, endpoints)}`
  return isOwn ? text : `${text}, as another service`
}
