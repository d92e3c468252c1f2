/** Runs inside User Mode Linux, started by ../ipvs.ts. */
import { execFileSync } from 'node:child_process'
import { marker } from './ipvs-marker.js'
import type { BenchResults } from './results.js'
import { mode } from '../../lib/modes/ipvs/index.js'
import type { ModeContext } from '../../lib/modes/mode.js'
import { service, states, testConfig } from '../../test/support/states.js'

const endpoints = 10
const changes = 60

const nothing = () => undefined
const context: ModeContext = {
  log: { debug: nothing, info: nothing, warn: nothing, error: nothing },
  meter: { count: nothing, gauge: nothing, observe: nothing, forget: nothing },
  resync: nothing,
}

/** The nth Service; its endpoints are on other nodes, as most are. */
function nth(index: number, count = endpoints) {
  return service({
    name: `s${index}`,
    clusterIp: `10.${100 + (index >> 16)}.${(index >> 8) & 255}.${index & 255}`,
    endpoints: Array.from({ length: count }, (_, at) => ({
      ip: `10.${at + 1}.${(index >> 8) & 255}.${index & 255}`,
      local: false,
    })),
  })
}

async function measure(services: number) {
  const cluster = states().put(...Array.from({ length: services }, (_, index) => nth(index)))
  const state = cluster.take()
  const running = await mode.create(testConfig, ['IPv4', 'IPv6'], context)
  const began = performance.now()
  const plan = running.plan(state)
  const planMs = performance.now() - began
  const applied = await running.apply(plan)
  if (applied.failed.length > 0) throw new Error(applied.failed[0]?.reason ?? 'failed')
  const startMs = performance.now() - began

  const times: number[] = []
  for (let change = 0; change < changes; change++) {
    const index = (change * 37) % services
    const next = cluster.put(nth(index, endpoints + 1)).take()
    const started = performance.now()
    const { objects } = await running.apply(running.plan(next))
    times.push(performance.now() - started)
    if (objects !== 1) throw new Error(`expected one change, made ${objects}`)
  }
  times.sort((a, b) => a - b)

  const restarted = await mode.create(testConfig, ['IPv4', 'IPv6'], context)
  const againBegan = performance.now()
  await restarted.apply(restarted.plan(cluster.take()))
  const restartMs = performance.now() - againBegan
  await running.close()
  await restarted.close()
  return { services, planMs, startMs, restartMs, changeMs: times[changes >> 1] ?? NaN }
}

/** How long ipvsadm takes to load the virtual servers that are in the kernel now. */
function ipvsadmMs(): number {
  const saved = execFileSync('ipvsadm', ['-Sn'], { maxBuffer: 1 << 28 })
  execFileSync('ipvsadm', ['-C'])
  const began = performance.now()
  execFileSync('ipvsadm', ['-R'], { input: saved })
  return performance.now() - began
}

const small = await measure(500)
await mode.cleanup(context)
const large = await measure(5_000)
const peerMs = ipvsadmMs()
console.table(
  [small, large].map((row) => ({
    services: row.services,
    'plan ms': row.planMs.toFixed(0),
    'start ms': row.startMs.toFixed(0),
    'restart ms': row.restartMs.toFixed(0),
    'one change ms (median)': row.changeMs.toFixed(2),
  })),
)
const growth = large.changeMs / small.changeMs
console.log(`one change at 5,000 against 500: ${growth.toFixed(2)}x (target <= 1.5x)`)
const start = large.startMs / peerMs
console.log(
  `start at 5,000 x ${endpoints} against ipvsadm -R (${peerMs.toFixed(0)} ms), which loads no ` +
    `ipsets, rules and addresses: ${start.toFixed(2)}x (target <= 2x)`,
)
const note = 'in User Mode Linux, whose system calls are slow: only ratios mean something'
const results: BenchResults = [
  { name: 'one change, 5,000 against 500', value: growth, unit: 'x', target: '<= 1.5' },
  { name: 'start at 5,000 x 10 against ipvsadm -R', value: start, unit: 'x', target: '<= 2', note },
]
for (const result of results) console.log(marker + JSON.stringify(result))
