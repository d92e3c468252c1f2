import t from 'tap'
import { Bell } from '../../lib/async.js'
import { cleanLeftovers, runLeftoverCleanup } from '../../lib/modes/leftovers.js'
import type { ModeContext, ModeDefinition } from '../../lib/modes/mode.js'
import type { ModeName } from '../../lib/config/config.js'
import type { ModeLoaders } from '../../lib/modes/registry.js'
import { testConfig } from '../support/states.js'
import { untilTrue } from '../support/until.js'

const names: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf']

function cleaning(failing?: ModeName, unloadable?: ModeName) {
  const cleaned: ModeName[] = []
  const warned: string[] = []
  const loaders: ModeLoaders = Object.fromEntries(
    names.map((name) => {
      const definition: Pick<ModeDefinition, 'cleanup'> = {
        cleanup: async (_, config) => {
          if (config !== testConfig) throw new Error('not the configuration')
          if (name === failing) throw new Error('lock held')
          cleaned.push(name)
        },
      }
      const load = async () => {
        if (name === unloadable) throw new Error('EMFILE: too many open files')
        return definition as ModeDefinition
      }
      return [name, load]
    }),
  )
  const log = {
    debug: () => undefined,
    info: () => undefined,
    error: () => undefined,
    warn: (fields: object) => warned.push(JSON.stringify(fields)),
  }
  const context = { log } as unknown as ModeContext
  return {
    cleaned,
    warned,
    context,
    loaders,
    run: (current: ModeName, signal?: AbortSignal) =>
      cleanLeftovers(current, context, testConfig, loaders, signal),
  }
}

t.test(
  'L16, IP36: the rules of every other mode are removed, except those it shares with the mode',
  async (t) => {
    for (const [current, expected] of [
      ['userspace', ['iptables', 'ipvs', 'nftables', 'ebpf']],
      ['iptables', ['userspace', 'ipvs', 'nftables', 'ebpf']],
      ['ipvs', ['userspace', 'nftables', 'ebpf']],
      ['nftables', ['userspace', 'iptables', 'ipvs', 'ebpf']],
      ['ebpf', ['userspace', 'iptables', 'ipvs']],
    ] as const) {
      const { cleaned, run } = cleaning()
      t.ok(await run(current))
      t.same(cleaned, expected, current)
    }
  },
)

t.test(
  'a mode whose cleanup fails is named and tried again later, and the others are cleaned up',
  async (t) => {
    const { cleaned, warned, run } = cleaning('iptables')
    t.notOk(await run('nftables'))
    t.same(cleaned, ['userspace', 'ipvs', 'ebpf'])
    t.match(warned, [/"mode":"iptables".*lock held/])
    const ending = cleaning('iptables')
    t.notOk(await ending.run('nftables', AbortSignal.abort()))
    t.same(ending.warned, [], 'the end of this process is no failure')
  },
)

t.test(
  'a mode whose code cannot be loaded is named, and the others are cleaned up all the same',
  async (t) => {
    const { cleaned, warned, run } = cleaning(undefined, 'userspace')
    t.notOk(await run('nftables'))
    t.same(cleaned, ['iptables', 'ipvs', 'ebpf'])
    t.match(warned, [/"mode":"userspace".*EMFILE/])
  },
)

t.test(
  'what a process in another mode has repaired until it ended is removed later',
  { skip: process.getuid?.() === 0 ? false : 'only root may remove rules' },
  async (t) => {
    const { cleaned, context, loaders } = cleaning()
    const rounds: unknown[] = []
    const run = {
      ...({ mode: 'iptables', config: testConfig, loaders, pausesMs: [1, 1] } as const),
      inForce: AbortSignal.abort(),
      cleaned: (isLast: boolean) => rounds.push([cleaned.splice(0), isLast]),
    }
    await runLeftoverCleanup(run, context, new AbortController().signal)
    const others = ['userspace', 'ipvs', 'nftables', 'ebpf']
    const all = [
      [others, false],
      [others, false],
      [others, true],
    ]
    t.same(rounds, all)

    // Its port is free long after the last cleanup.
    rounds.splice(0)
    const portFreed = new Bell()
    const stop = new AbortController()
    const running = runLeftoverCleanup({ ...run, portFreed }, context, stop.signal)
    await untilTrue(() => rounds.length === 3)
    portFreed.ring()
    await untilTrue(() => rounds.length === 6)
    stop.abort()
    await running
    t.same(rounds, [...all, ...all])
  },
)
