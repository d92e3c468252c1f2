import { KernelError } from '../../lib/errors.js'
import { runCommand } from '../../lib/kernel/command.js'
import type { Applied, Mode } from '../../lib/modes/mode.js'
import type { DesiredService, DesiredState, Endpoint } from '../../lib/state/desired-state.js'
import { hostPort, type IpFamily } from '../../lib/state/ip.js'

/** The flaws that a reference proxy can have. The suite must notice each. */
export const flaws = [
  'wrong-endpoints',
  'one-endpoint',
  'uneven',
  'no-masquerade',
  'masquerades-all',
  'no-reject',
  'reject-for-drop',
  'no-affinity',
  'ignores-local-policy',
  'no-ranges',
  'no-external-ips',
  'keeps-stale-flows',
  'forwards-invalid',
] as const

export type Flaw = (typeof flaws)[number]

interface ReferencePlan {
  readonly family: IpFamily
  readonly text: string
}

/**
 * The smallest correct proxy, to test the suite itself. It keeps no state and writes the whole
 * table anew for every change. The suite must fail a proxy with a flaw.
 */
export function createReferenceProxy(flaw: Flaw | undefined): Mode<ReferencePlan> {
  const plan = (state: DesiredState) => ({ family: state.family, text: tableText(state, flaw) })
  return {
    plan,
    render: ({ text }) => text,
    renderChanges: ({ text }) => text,
    forget: () => undefined,
    reconfigure: () => false,
    apply: async ({ text }): Promise<Applied> => {
      const result = await runCommand('nft', ['-f', '-'], { stdin: text })
      if (result.code !== 0) {
        throw new KernelError('failed', 'write the reference table: nft failed', {
          detail: `${result.stderr}\n${text}`,
        })
      }
      return { full: true, bytes: text.length, objects: 1, failed: [] }
    },
    run: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
}

const mark = '0x4000'

function tableText(state: DesiredState, flaw: Flaw | undefined): string {
  const ip = state.family === 'IPv4' ? 'ip' : 'ip6'
  const services = [...state.services.entries()].map(([, service], index) =>
    serviceText(ip, index, service, state, flaw),
  )
  const all = (part: keyof ServiceText) => services.map((service) => service[part]).join('')
  return `add table ${ip} reference
delete table ${ip} reference
table ${ip} reference {
${all('chains')}
chain verdicts {
${all('verdicts')}}
chain services {
${all('dispatch')}}
chain refuse-in { type filter hook prerouting priority -110; ct state new jump verdicts; }
chain refuse-out { type filter hook output priority -110; ct state new jump verdicts; }
chain forward {
type filter hook forward priority filter
${flaw === 'forwards-invalid' ? '' : 'ct state invalid drop'}
}
chain nat-in { type nat hook prerouting priority dstnat; jump services; }
chain nat-out { type nat hook output priority -100; jump services; }
chain nat-post {
type nat hook postrouting priority srcnat;
${flaw === 'no-masquerade' ? '' : `meta mark and ${mark} == ${mark} masquerade\n${all('hairpins')}`}
${flaw === 'masquerades-all' ? 'ct status dnat masquerade' : ''}
}
}
`
}

interface ServiceText {
  readonly chains: string
  readonly verdicts: string
  readonly dispatch: string
  readonly hairpins: string
}

function serviceText(
  ip: string,
  index: number,
  service: DesiredService,
  state: DesiredState,
  flaw: Flaw | undefined,
): ServiceText {
  const protocol = service.protocol.toLowerCase()
  const to = (address: string) => `${ip} daddr ${address} ${protocol} dport ${service.port}`
  const internal = to(service.clusterIp)
  const externalIps = flaw === 'no-external-ips' ? [] : service.externalIps
  const external = [...externalIps, ...service.loadBalancerIps].map(to)
  if (service.nodePort !== 0) {
    const local = state.node.nodePorts.addresses.join(', ')
    external.push(`${ip} daddr { ${local} } ${protocol} dport ${service.nodePort}`)
  }
  const pods = state.node.localTraffic.by === 'cidrs' ? state.node.localTraffic.cidrs : []
  const podRange = pods.map(({ text }) => text).join(', ')
  const fromPods = podRange === '' ? undefined : `${ip} saddr { ${podRange} }`
  const offCluster = podRange === '' ? undefined : `${ip} saddr != { ${podRange} }`
  const isLocalOnly = service.externalPolicyLocal && flaw !== 'ignores-local-policy'
  const externalRules = isLocalOnly
    ? [
        ...(fromPods === undefined ? [] : [`${fromPods} goto cluster-${index}`]),
        `fib saddr type local meta mark set ${mark} goto cluster-${index}`,
        service.localEndpoints.length > 0 ? `goto local-${index}` : 'return',
      ]
    : [`meta mark set ${mark}`, `goto cluster-${index}`]
  const internalChain = service.internal === 'local' ? 'local' : 'cluster'
  return {
    chains:
      balanceText(ip, `cluster-${index}`, service, service.clusterEndpoints, flaw) +
      balanceText(ip, `local-${index}`, service, service.localEndpoints, flaw) +
      `chain external-${index} {\n${externalRules.join('\n')}\n}\n`,
    verdicts: verdictText(ip, service, internal, external, flaw, fromPods),
    dispatch: [
      ...(offCluster === undefined ? [] : [`${internal} ${offCluster} meta mark set ${mark}`]),
      `${internal} goto ${internalChain}-${index}`,
      ...external.map((match) => `${match} goto external-${index}`),
      '',
    ].join('\n'),
    hairpins: service.reachableEndpoints
      .map((endpoint) => `${ip} saddr ${endpoint.ip} ${ip} daddr ${endpoint.ip} masquerade\n`)
      .join(''),
  }
}

function verdictText(
  ip: string,
  service: DesiredService,
  internal: string,
  external: readonly string[],
  flaw: Flaw | undefined,
  fromPods: string | undefined,
): string {
  const refusal = (verdict: string) => {
    if (verdict === 'reject') return flaw === 'no-reject' ? 'drop' : 'reject'
    return flaw === 'reject-for-drop' ? 'reject' : 'drop'
  }
  const lines: string[] = []
  if (service.sourceRanges.length > 0 && flaw !== 'no-ranges') {
    const allowed = service.sourceRanges.map(({ text }) => text).join(', ')
    for (const address of service.loadBalancerIps) {
      const port = `${service.protocol.toLowerCase()} dport ${service.port}`
      lines.push(`${ip} daddr ${address} ${port} ${ip} saddr != { ${allowed} } drop`)
    }
  }
  if (service.internal === 'reject' || service.internal === 'drop') {
    lines.push(`${internal} ${refusal(service.internal)}`)
  }
  if (service.external === 'reject' || service.external === 'drop') {
    for (const match of external) {
      if (service.external === 'drop') {
        // S18: pods and the node itself still reach the endpoints on other nodes.
        lines.push(`${match} fib saddr type local accept`)
        if (fromPods !== undefined) lines.push(`${match} ${fromPods} accept`)
      }
      lines.push(`${match} ${refusal(service.external)}`)
    }
  }
  return lines.map((line) => `${line}\n`).join('')
}

function balanceText(
  ip: string,
  name: string,
  service: DesiredService,
  wanted: readonly Endpoint[],
  flaw: Flaw | undefined,
): string {
  const endpoints = flawedEndpoints(service, wanted, flaw)
  const target = ({ ip: address, port }: Endpoint) =>
    `meta l4proto ${service.protocol.toLowerCase()} dnat to ${hostPort(address, port)}`
  if (endpoints.length === 0) return `chain ${name} {\n}\n`
  const chainOf = (index: number) => `${name}-to-${index}`
  const timeout = flaw === 'no-affinity' ? undefined : service.affinitySeconds
  const setOf = (index: number) => `${name}-seen-${index}`
  const sets = endpoints.map((_, index) =>
    timeout === undefined
      ? ''
      : `set ${setOf(index)} { type ${ip === 'ip' ? 'ipv4_addr' : 'ipv6_addr'}; ` +
        `flags dynamic,timeout; timeout ${timeout}s; }\n`,
  )
  const chains = endpoints.map((endpoint, index) => {
    const remember = timeout === undefined ? '' : `update @${setOf(index)} { ${ip} saddr }\n`
    return `chain ${chainOf(index)} {\n${remember}${target(endpoint)}\n}\n`
  })
  const returning = endpoints.map((_, index) =>
    timeout === undefined ? '' : `${ip} saddr @${setOf(index)} goto ${chainOf(index)}\n`,
  )
  const count = endpoints.length
  const pick = endpoints.map((_, index) => `${index} : goto ${chainOf(index)}`)
  // Uneven: the first of n endpoints gets 2 of n + 1 connections.
  const extra = flaw === 'uneven' ? [`${count} : goto ${chainOf(0)}`] : []
  const modulus = count + extra.length
  return (
    `${sets.join('')}${chains.join('')}chain ${name} {\n${returning.join('')}` +
    `numgen random mod ${modulus} vmap { ${[...pick, ...extra].join(', ')} }\n}\n`
  )
}

function flawedEndpoints(
  service: DesiredService,
  wanted: readonly Endpoint[],
  flaw: Flaw | undefined,
): readonly Endpoint[] {
  if (flaw === 'one-endpoint') return wanted.slice(0, 1)
  return flaw === 'wrong-endpoints' && wanted.length > 0 ? service.servingEndpoints : wanted
}
