import t, { type Test } from 'tap'
import { readClusterStates } from '../../lib/cli/node-states.js'
import type { NodeStates } from '../../lib/sources/collected-states.js'
import { configWith } from '../../lib/config/load.js'
import { createFaultyApi, type FaultEffect } from '../support/faulty-api.js'

/** What commands read from an API server, with this effect on a resource. */
async function read(t: Test, resource: string, effect: FaultEffect): Promise<NodeStates> {
  const api = createFaultyApi()
  const ended = new AbortController()
  const serving = api.run(ended.signal)
  t.teardown(async () => {
    ended.abort()
    await serving
  })
  api.faults.inject({ resources: [resource], effect })
  const config = configWith({ master: await api.listening() })
  const request = { mode: 'nftables', families: ['IPv4'], nodeName: 'node-1' } as const
  return readClusterStates({ ...request, config, addresses: ['192.0.2.1'] })
}

async function cidrsRead(t: Test, effect: FaultEffect): Promise<readonly string[] | undefined> {
  const { states } = await read(t, 'servicecidrs', effect)
  return states[0]?.serviceCidrs.map(({ text }) => text)
}

t.test('R09: what is read of a cluster has its ServiceCIDRs, also if they come late', async (t) => {
  t.same(await cidrsRead(t, { drip: { bytes: 65_536, everyMs: 100 } }), ['10.96.0.0/16'])
})

t.test('R09: ServiceCIDRs that are missing, refused or never come are done without', async (t) => {
  for (const effect of [{ answer: 404 }, { answer: 403 }, { hang: true }] as const)
    t.same(await cidrsRead(t, effect), [], JSON.stringify(effect))
})

t.test('what fails again and again is told once', async (t) => {
  const { warnings } = await read(t, 'nodes', { answer: 500 })
  t.match(warnings, [/nodes: 500 injected fault/])
  t.equal(warnings.length, 1)
})
