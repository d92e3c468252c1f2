import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { enterPrivateNetns } from '../../test/support/private-netns.js'
import { iptablesMode } from '../../lib/modes/iptables/index.js'
import { Sysctls } from '../../lib/kernel/sysctl.js'
import { service, states, testConfig, type ServiceSpec } from '../../test/support/states.js'
import type { Backend } from '../../lib/kernel/iptables.js'
import type { Mode, ModeContext } from '../../lib/modes/mode.js'
import type { States } from '../../test/support/states.js'

const endpointsPerService = 10
const measuredChanges = 60
const otherChangesPerSecond = 20

async function measure(backend: Backend, services: number) {
  const mode = await iptablesMode({ backend, sysctls: new Sysctls('/nonexistent') }).create(
    testConfig,
    ['IPv4'],
    silentContext,
  )
  const cluster = states().put(...Array.from({ length: services }, (_, index) => spec(index, 0)))
  const began = performance.now()
  await mode.apply(mode.plan(cluster.take()))
  const startMs = performance.now() - began

  const cpuBefore = cpuMs()
  const churn = new Churn(mode, cluster, services)
  const stop = new AbortController()
  const others = keepChanging(churn, stop.signal)
  const times: number[] = []
  for (let change = 0; change < measuredChanges; change++) {
    await sleep(100 + Math.random() * 50)
    times.push(await churn.change())
  }
  stop.abort()
  await others
  const cpuPerChange = (cpuMs() - cpuBefore) / churn.changes
  times.sort((a, b) => a - b)
  return {
    backend,
    services,
    'start ms': startMs.toFixed(0),
    'change p50 ms': at(times, 0.5),
    'p99 ms': at(times, 0.99),
    'CPU ms a change': cpuPerChange.toFixed(1),
    'process MiB': (process.memoryUsage.rss() / 2 ** 20).toFixed(0),
  }
}

/** Changes one Service at a time; changes that come while a sync runs share the next sync. */
class Churn {
  readonly #mode: Mode
  readonly #cluster: States
  readonly #services: number
  changes = 0
  #next: Promise<void> | undefined
  #running: Promise<void> = Promise.resolve()

  constructor(mode: Mode, cluster: States, services: number) {
    this.#mode = mode
    this.#cluster = cluster
    this.#services = services
  }

  async change(): Promise<number> {
    const began = performance.now()
    this.changes++
    this.#cluster.put(spec((this.changes * 37) % this.#services, this.changes))
    await this.#sync()
    return performance.now() - began
  }

  #sync(): Promise<void> {
    this.#next ??= this.#running.then(async () => {
      this.#next = undefined
      await this.#mode.apply(this.#mode.plan(this.#cluster.take()))
    })
    this.#running = this.#next
    return this.#next
  }
}

async function keepChanging(churn: Churn, signal: AbortSignal): Promise<void> {
  const pending: Promise<number>[] = []
  while (!signal.aborted) {
    pending.push(churn.change())
    await sleep(1000 / otherChangesPerSecond)
  }
  await Promise.all(pending)
}

function spec(index: number, generation: number): ServiceSpec {
  return service({
    name: `service-${index}`,
    clusterIp: `10.96.${index >> 8}.${index & 255}`,
    endpoints: Array.from({ length: endpointsPerService }, (_, endpoint) => {
      const moved = endpoint === 0 ? generation % 200 : 0
      return `10.${180 + (index >> 12)}.${(index >> 4) & 255}.${((index & 15) * 11 + endpoint + moved) & 255}`
    }),
  })
}

/** CPU time of this process and of the children that have ended, in ms. */
function cpuMs(): number {
  const fields = readFileSync('/proc/self/stat', 'utf8')
    .replace(/^.*\) /, '')
    .split(' ')
  const ticks = [11, 12, 13, 14].map((field) => Number(fields[field]))
  return ticks.reduce((sum, value) => sum + value, 0) * 10
}

function at(sorted: readonly number[], share: number): string {
  return (sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? NaN).toFixed(1)
}

const silentContext: ModeContext = {
  log: {
    debug: () => undefined,
    info: () => undefined,
    warn: (fields, message) => console.warn(message, fields),
    error: (fields, message) => console.error(message, fields),
  },
  meter: {
    count: () => undefined,
    gauge: () => undefined,
    observe: () => undefined,
    forget: () => undefined,
  },
  resync: () => undefined,
}

/**
 * `iptables.js BACKEND SERVICES`: prints one row as JSON. Each row has its own process and memory.
 */
const [, , backendText, servicesText] = process.argv
const refusal = enterPrivateNetns()
if (refusal !== undefined) throw new Error(refusal)
console.log(
  JSON.stringify(
    await measure(backendText === 'legacy' ? 'legacy' : 'nft', Number(servicesText ?? 1000)),
  ),
)
