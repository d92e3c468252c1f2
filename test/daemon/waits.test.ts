import { mock } from 'node:test'
import t from 'tap'
import { limitWaits } from '../../lib/daemon/syncing.js'

/** What is said after this many seconds. */
async function saidAfter(seconds: number, knowsNode: boolean, client: object | undefined) {
  mock.timers.enable({ apis: ['setTimeout'] })
  const said: string[] = []
  const stop = new AbortController()
  const waiting = limitWaits(
    {
      nodeName: 'here',
      objects: { client },
      deps: { log: { warn: (_fields, text) => void said.push(text) } },
    },
    { knowsNode, stopWaitingFor: (kind) => said.push(kind) < 0 },
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
