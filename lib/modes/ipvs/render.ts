import { removalBatch, setBatch } from './set-batch.js'
import { between, noChanges, addResource, type Changes } from './changes.js'
import { chainBatch, jumps } from './chains.js'
import { deviceName } from './names.js'
import { ipvsPlanner, onlyOf, type IpvsPlan } from './plan.js'
import { serverText, type VirtualServer } from './resource.js'
import { ipvsSettings, type IpvsSettings } from './settings.js'
import { bitsOf } from '../../state/ip.js'
import type { Config } from '../../config/config.js'
import type { PlanReader } from '../mode.js'

/** The plan as text, in the formats that ipset, iptables and ipvsadm read. */
export function renderPlan(plan: IpvsPlan): string {
  const changes = noChanges()
  const requests = [...plan.requests].sort(([a], [b]) => (a < b ? -1 : 1))
  for (const [, [first]] of requests) addResource(changes, first?.resource)
  changes.chains = plan.chains
  return renderSteps(plan, changes, new Map())
}

/** What `apply` would do to get from one plan to the next. */
export function renderChanges(plan: IpvsPlan, previous: IpvsPlan | undefined): string {
  return previous ? renderSteps(plan, between(plan, previous)) : renderPlan(plan)
}

function renderSteps(
  plan: IpvsPlan,
  changes: Changes,
  present?: Parameters<typeof setBatch>[2],
): string {
  const sets = setBatch(plan, changes, present).toString()
  const rules = changes.chains ? chainBatch(changes.chains, jumps).toString() : ''
  const restore = plan.family === 'IPv4' ? 'iptables-restore' : 'ip6tables-restore'
  return [
    section('ipset restore', sets),
    section(`${restore} --noflush`, rules),
    section('ipvsadm --restore', serverLines(changes)),
    section('addresses, by rtnetlink', addressLines(plan, changes)),
    section('ipset restore, at last', removalBatch(plan, changes).toString()),
  ].join('')
}

function section(title: string, text: string): string {
  return text === '' ? '' : `# ${title}\n${text}\n`
}

/** The changes in the notation of `ipvsadm -Sn`. Each line is one netlink message. */
function serverLines(changes: Changes): string {
  const lines = [
    ...changes.addServers.map((server) => `-A ${addressOf(server)} ${optionsOf(server)}`),
    ...changes.setServers.map((server) => `-E ${addressOf(server)} ${optionsOf(server)}`),
    ...changes.addReals.map(
      ({ server, key, real }) => `-a ${addressOf(server)} -r ${key} -m -w ${real.weight}`,
    ),
    ...changes.setReals.map(
      ({ server, key, real }) => `-e ${addressOf(server)} -r ${key} -m -w ${real.weight}`,
    ),
    ...changes.removeReals.map(({ server, key }) =>
      server.protocol === 'TCP'
        ? `-e ${addressOf(server)} -r ${key} -m -w 0  # then -d, when its connections have ended`
        : `-d ${addressOf(server)} -r ${key}`,
    ),
    ...changes.removeServers.map((server) => `-D ${addressOf(server)}`),
  ]
  return lines.map((line) => `${line}\n`).join('')
}

/** How ipvsadm names the protocol of a virtual server. */
export const protocolOptions = { TCP: '-t', UDP: '-u', SCTP: '--sctp-service' } as const

export function addressOf(
  server: Pick<VirtualServer, 'ip' | 'port' | 'protocol' | 'family'>,
): string {
  const [address = ''] = serverText(server).split('/')
  return `${protocolOptions[server.protocol]} ${address}`
}

export function optionsOf({
  scheduler,
  persistenceSeconds,
  schedulerFlags,
}: VirtualServer): string {
  const persistence = persistenceSeconds > 0 ? ` -p ${persistenceSeconds}` : ''
  const flags = [
    ...(schedulerFlags & 0x8 ? [`${scheduler}-fallback`] : []),
    ...(schedulerFlags & 0x10 ? [`${scheduler}-port`] : []),
  ]
  return `-s ${scheduler}${persistence}${flags.length > 0 ? ` -b ${flags.join()}` : ''}`
}

function addressLines({ family }: IpvsPlan, changes: Changes): string {
  const bits = bitsOf(family)
  return [
    ...changes.addAddresses.map((ip) => `ip address add ${ip}/${bits} dev ${deviceName}\n`),
    ...changes.removeAddresses.map((ip) => `ip address del ${ip}/${bits} dev ${deviceName}\n`),
  ].join('')
}

/** Plans and renders without a kernel. */
export function ipvsReader(config: Config): PlanReader<IpvsPlan> {
  return readerOf(ipvsSettings(config))
}

export function readerOf(settings: IpvsSettings): PlanReader<IpvsPlan> {
  const plan = ipvsPlanner(settings)
  return { plan, render: renderPlan, renderChanges, parts: ({ parts }) => parts, only: onlyOf }
}
