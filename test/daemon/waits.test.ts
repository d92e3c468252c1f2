import { mock } from 'node:test'
import t from 'tap'
import type { Config } from '../../lib/config/config.js'
import { limitWaits } from '../../lib/daemon/syncing.js'

interface Detection extends Pick<Config, 'detectLocalMode'> {
  readonly knowsPodCidrs: boolean
}

/** What is said after this many seconds. */
async function saidAfter(
  seconds: number,
  knowsNode: boolean,
  client: object | undefined,
  { detectLocalMode = '', knowsPodCidrs = false }: Partial<Detection> = {},
) {
  mock.timers.enable({ apis: ['setTimeout'] })
  const said: string[] = []
  const stop = new AbortController()
  const waiting = limitWaits(
    {
      nodeName: 'here',
      config: { detectLocalMode },
      objects: { client },
      deps: { log: { warn: (_fields, text) => void said.push(text) } },
    },
    { stopWaitingFor: (kind) => said.push(kind) < 0 },
    { knowsNode, knowsPodCidrs },
    stop.signal,
  )
  for (let passed = 0; passed < seconds; passed++) {
    mock.timers.tick(1000)
    await Promise.resolve()
  }
  stop.abort()
  await waiting
  mock.timers.reset()
  return said
}

t.test(
  'L04: a node that the API server does not know is told, even if its list came',
  async (t) => {
    t.same(await saidAfter(1, false, {}), ['ServiceCIDR'])
    t.same(await saidAfter(29, false, {}), ['ServiceCIDR'])
    const [, ended, told] = await saidAfter(30, false, {})
    t.equal(ended, 'Node')
    t.match(told, /Node object not found yet/)
    t.same(await saidAfter(30, true, {}), ['ServiceCIDR', 'Node'])
    t.same(await saidAfter(30, false, undefined), ['ServiceCIDR', 'Node'], 'manifests need no node')
  },
)

t.test(
  'R07: NodeCIDR without a podCIDR is told, because no packet counts as one of a pod',
  async (t) => {
    const after = (seconds: number, knowsPodCidrs: boolean) =>
      saidAfter(seconds, true, {}, { detectLocalMode: 'NodeCIDR', knowsPodCidrs })
    t.same(await after(29, false), ['ServiceCIDR'])
    t.match(await after(30, false), ['ServiceCIDR', 'Node', /no Node object tells a podCIDR/])
    t.same(await after(30, true), ['ServiceCIDR', 'Node'])
  },
)
