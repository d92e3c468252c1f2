import { mock } from 'node:test'
import t from 'tap'
import type { Config } from '../../lib/config/config.js'
import { endHanging } from '../../lib/daemon/slow-programs.js'
import { limitWaits, syncing } from '../../lib/daemon/syncing.js'
import { runCommand } from '../../lib/kernel/command.js'
import { states } from '../support/states.js'

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
    t.match(told, /Node object not found yet.*healthz answers 503/)
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

t.test('a first sync that takes long is told, as the rest of the start is', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const said: string[] = []
  const quiet = () => undefined
  let end: () => void = quiet
  const applied = { full: true, bytes: 0, objects: 0, failed: [] }
  const tracker = {
    take: () => ({
      states: [states().take()],
      ...{ changed: new Map(), triggerTimes: new Map(), healthChecks: new Map() },
      ...{ withoutLocalEndpoints: [], warnings: [] },
    }),
  }
  const sync = syncing({
    tracker,
    mode: {
      plan: ({ family }) => ({ family }),
      apply: () =>
        new Promise((resolve) => {
          end = () => resolve(applied)
        }),
      forget: quiet,
    },
    requests: { takeFull: () => true },
    log: { debug: quiet, warn: quiet, error: quiet, info: (_fields, text) => void said.push(text) },
    ...{ listeners: [], flows: undefined, allApplied: new AbortController() },
    signal: new AbortController().signal,
  })
  for (const told of [['the start takes long'], []]) {
    const running = sync()
    while (end === quiet) await new Promise(setImmediate)
    mock.timers.tick(5000)
    await Promise.resolve()
    t.same(said.splice(0), told)
    end()
    end = quiet
    await running
  }
})

t.test('programs that hang keep a proxy that ends only for a while', async (t) => {
  const said: unknown[] = []
  const log = { info: () => undefined, warn: (fields: object) => void said.push(fields) }
  const ending = new AbortController()
  const failures: unknown[] = []
  // The program behind the shell is not killed, and holds the streams open.
  const script = 'sleep 30 & wait'
  const hang = () =>
    runCommand('sh', ['-c', script]).catch((error: unknown) => failures.push(error))
  const work = async () => {
    const first = hang()
    t.equal((await runCommand('true', [])).code, 0, 'before the signal nothing is ended')
    ending.abort()
    await first
    await hang()
  }
  await endHanging(log, ending.signal, work, { firstMs: 200, laterMs: 100 })
  const ended = { command: `sh -c ${script}` }
  t.same(said, [ended, ended], 'each is told once')
  t.match(failures, [/killed by SIGKILL/, /killed by SIGKILL/])
})
