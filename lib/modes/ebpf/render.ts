import { hostPort } from '../../state/ip.js'
import { mostEndpoints, type DrawWord, type ServiceWord } from './layout.js'
import {
  ebpfPlanner,
  onlyOf,
  type Frontend,
  type SocketPlan,
  type TargetList,
  type EbpfPlan,
} from './plan.js'
import { ebpfSettings, type EbpfSettings } from './settings.js'
import type { Config } from '../../config/config.js'
import type { Planner, PlanReader } from '../mode.js'

/** The maps of a plan as text: one line for each entry, sorted. */
export function renderSockets(plan: SocketPlan): string {
  return linesOf(plan)
    .map((line) => `${line}\n`)
    .join('')
}

/** The lines to remove and to add to get from one plan to the other. */
export function renderSocketChanges(plan: SocketPlan, previous: SocketPlan | undefined): string {
  if (!previous) return renderSockets(plan)
  const [now, before] = [new Set(linesOf(plan)), new Set(linesOf(previous))]
  const removed = [...before].filter((line) => !now.has(line)).map((line) => `- ${line}\n`)
  const added = [...now].filter((line) => !before.has(line)).map((line) => `+ ${line}\n`)
  return [...removed, ...added].join('')
}

function linesOf(plan: SocketPlan): readonly string[] {
  const frontends = [...plan.frontends.values()].flatMap(([first]) => (first ? [first] : []))
  const lists = [...plan.parts.values()].flatMap(({ targets }) => targets)
  const prefix = `sockets ${plan.family}:`
  return [
    ...plan.nodeAddresses.map(
      ({ address, hostOnly }) =>
        `${prefix} node address ${address}${hostOnly ? ' for sockets of the node itself' : ''}`,
    ),
    ...frontends.map((each) => `${prefix} ${frontendText(each)} -> ${each.targets}`),
    ...lists.map((list) => `${prefix} ${targetsText(list)}`),
  ].sort()
}

export function frontendText(frontend: Frontend): string {
  const { address, port, protocol } = frontend
  const where = address === undefined ? `node port ${port}` : hostPort(address, port)
  return `frontend ${where} ${protocol}`
}

/** A frontend and the endpoints that it leads to, as the maps hold them. */
export function entryText(frontend: Frontend, list: TargetList | undefined): string {
  const endpoints = list?.endpoints.slice(0, mostEndpoints).map(({ key }) => key) ?? []
  const { draw, affinitySeconds } = list ?? { draw: 'chance', affinitySeconds: 0 }
  const word = { refuses: list?.verdict === 'refuse', draw, affinitySeconds }
  return `${frontendText(frontend)} -> ${leadText(word, endpoints)}`
}

export function leadText(
  { refuses, draw, affinitySeconds }: Lead,
  endpoints: readonly string[],
): string {
  if (refuses) return 'refused'
  if (endpoints.length === 0) return 'left to packets'
  return endpoints.join(', ') + drawTexts[draw] + affinityText(affinitySeconds)
}

interface Lead extends Pick<ServiceWord, 'refuses' | 'draw'> {
  readonly affinitySeconds: number
}

const affinityText = (seconds: number) => (seconds > 0 ? `, the same for ${seconds} s` : '')

const drawTexts: Readonly<Record<DrawWord, string>> = {
  chance: '',
  turn: ' in turn',
  fewest: ' by open connections',
}

function targetsText(list: TargetList): string {
  const { id, verdict, endpoints, draw, affinitySeconds } = list
  const affinity = affinityText(affinitySeconds)
  switch (verdict) {
    case 'balance':
      return `service ${id}: one of ${endpoints.map(({ key }) => key).join(', ')}${drawTexts[draw]}${affinity}`
    case 'refuse':
      return `service ${id}: connections are refused`
    case 'leave':
      return `service ${id}: left to packets`
  }
}

/** Plans and renders without a kernel. */
export function ebpfReader(config: Config, packets: PlanReader): PlanReader<EbpfPlan> {
  return {
    ...plannerOf(ebpfSettings(config), packets),
    // Every change of a service port's part for sockets also changes its part for packets.
    parts: (plan) => packets.parts(plan.packets),
    lines: (plan) => [
      ...linesOf(plan.sockets).map((text) => ({ text })),
      ...(packets.lines?.(plan.packets) ?? []),
    ],
    only: (plan, keys) => ({
      ...plan,
      packets: packets.only(plan.packets, keys),
      sockets: onlyOf(plan.sockets, keys),
    }),
  }
}

export function plannerOf(settings: EbpfSettings, packets: Planner): Planner<EbpfPlan> {
  return {
    plan: ebpfPlanner(settings, packets),
    render: (plan) => renderSockets(plan.sockets) + packets.render(plan.packets),
    renderChanges: (plan, previous) =>
      renderSocketChanges(plan.sockets, previous?.sockets) +
      packets.renderChanges(plan.packets, previous?.packets),
  }
}
