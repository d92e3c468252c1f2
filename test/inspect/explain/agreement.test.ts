import t from 'tap'
import { explainerOf, type Explainer } from '../../../lib/inspect/explain/explain.js'
import { missingSystem } from '../../../lib/modes/systems.js'
import { modeNames } from '../../../lib/modes/registry.js'
import { planners } from '../../../lib/modes/planners.js'
import type { Config, ModeName } from '../../../lib/config/config.js'
import type { Packet, Way } from '../../../lib/inspect/explain/packet.js'
import {
  addressOf,
  backendPorts,
  bridgeName,
  isOnNode,
  placeOf,
  podsOfNode,
  uplinkName,
} from '../../../lib/lab/world/topology.js'
import type { Case, Client } from '../../conformance/case.js'
import { caseConfig, caseStates } from '../../conformance/case-states.js'
import { readCases } from '../../conformance/case-file.js'
import { casesFolder } from '../../conformance/cases-folder.js'
import { expandFlow, type Check, type Expected } from '../../conformance/flows.js'
import { skips, withoutSctp } from '../../conformance/mode-profiles.js'
import type { DesiredState } from '../../../lib/state/desired-state.js'

/** Compares `explain` with real packets: the flows of the conformance suite. */

function wayIn({ place }: Client): string | undefined {
  if (place === 'node') return undefined
  return (podsOfNode as readonly string[]).includes(place) ? bridgeName : uplinkName
}

/** The endpoint that a way reaches, or how it fails, in the words of the cases. */
function outcomeOf({ end, packet, isAnsweredPast }: Way): string {
  if (end === 'dropped') return 'dropped'
  if (end === 'rejected') return 'refused'
  const place = placeOf(packet.destination)
  if (isAnsweredPast) return 'no-reply'
  if (place && backendPorts.includes(packet.port)) return place
  // On this node nothing listens there; on other nodes nothing has the address.
  return end === 'local' ? 'refused' : 'no-reply'
}

interface Explained {
  readonly state: DesiredState
  readonly config: Config
  readonly explain: Explainer
}

function disagreement(
  { mode }: Expected,
  check: Check,
  { state, config, explain }: Explained,
): string | undefined {
  const { client, family, protocol, host, port, gets, source } = check
  // Packets without ports are not compared.
  if (protocol === 'ICMP') return undefined
  if (mode === undefined) return 'no mode'
  const packet: Packet = {
    family,
    protocol,
    source:
      client.place === 'node' && check.target === 'localhost'
        ? host
        : addressOf(client.place, family, client.addressIndex),
    destination: host,
    port,
    inInterface: wayIn(client),
    isSocketHere: isOnNode(client.place),
    mark: 0,
    isDnated: false,
    isMasqueraded: false,
  }
  const ways = explain({ state, config, packet })
  const total = ways.reduce((sum, { probability }) => sum + probability, 0)
  if (Math.abs(total - 1) > 1e-6) return `probabilities add up to ${total}`
  const outcomes = [
    ...new Set(ways.filter(({ probability }) => probability > 0).map(outcomeOf)),
  ].sort()
  if (gets === 'same' || gets === 'whatever') return undefined
  if (typeof gets === 'string') {
    const failures = ['dropped', 'refused', 'no-reply', 'unreachable']
    const isRight = outcomes.every((outcome) =>
      gets === 'no-reply' || outcome === 'no-reply' ? failures.includes(outcome) : outcome === gets,
    )
    return isRight ? undefined : `expected ${gets}, explained ${outcomes.join(', ')}`
  }
  const expected = [...gets].sort()
  if (outcomes.join() !== expected.join())
    return `expected ${expected.join(', ')}, explained ${outcomes.join(', ')}`
  // The rules do not show whether a header is sent.
  if (source === undefined || source === 'announced') return undefined
  if (client.place === 'node') return undefined
  const masqueraded = ways.every(({ packet }) => packet.isMasqueraded)
  const kept = ways.every(({ packet }) => !packet.isMasqueraded)
  return (source === 'kept' ? kept : masqueraded) ? undefined : `expected source ${source}`
}

function isLeftOut(mode: ModeName, { name, topic }: Case, check: Check): boolean {
  // Only the running proxy knows who fails a health check; see explain's tests on that.
  if (topic === 'health') return true
  if (skips[mode].some((skip) => skip.flows(check))) return true
  // Userspace mode has no rules for SCTP (S28).
  if (mode === 'userspace' && withoutSctp.flows(check)) return true
  // No machine answers ARP for that address, so the packet does not reach this node.
  return name.startsWith('S34: an address on') && check.client.place === 'outside'
}

const cases = readCases(casesFolder)
const variants = [
  ...modeNames.filter((mode) => !missingSystem(mode, 'linux')).map((mode) => ({ mode })),
  { mode: 'userspace', keepsSource: 'everywhere' } as const,
]

for (const variant of variants) {
  const { mode } = variant
  const title = `${mode} mode${'keepsSource' in variant ? ', with sources kept' : ''}`
  t.test(`explain agrees with the flows of every case in ${title}`, async (t) => {
    let compared = 0
    const wrong: string[] = []
    let serial = 0
    for (const each of cases) {
      const config = caseConfig(each.settings, 'keepsSource' in variant)
      for (const { step, states, services } of caseStates(each, mode, () => serial++)) {
        const explained = states.map((state) => {
          const plan = planners[mode](config).plan(state)
          return { state, config, explain: explainerOf(mode, plan) }
        })
        for (const flow of step.flows) {
          // An earlier connection decides about these flows, and not the rules.
          if (flow.use !== undefined || flow.sticky !== false || flow.keep !== undefined) continue
          for (const check of expandFlow(flow, services.known(), variant)) {
            if (isLeftOut(mode, each, check)) continue
            const own = explained.find(({ state }) => state.family === check.family)
            if (!own) continue
            compared++
            const problem = disagreement(variant, check, own)
            if (problem !== undefined)
              wrong.push(`${each.topic}: ${each.name}: ${check.label}: ${problem}`)
          }
        }
      }
    }
    // docs/explain.md names this number.
    t.ok(compared > 1100, `${compared} flows compared`)
    t.same(wrong, [])
  })
}
