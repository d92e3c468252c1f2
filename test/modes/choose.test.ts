import t from 'tap'
import { chooseMode } from '../../lib/modes/choose.js'
import type { Log, ModeDefinition } from '../../lib/modes/mode.js'
import type { ModeName } from '../../lib/config/config.js'
import { modeMeant } from '../../lib/modes/systems.js'
import type { ModeLoaders } from '../../lib/modes/registry.js'
import { PersistentMap } from '../../lib/state/persistent-map.js'

const log: Log = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
}

/** Loaders of all modes, of which only the named ones can run. */
function loaders(runnable: readonly ModeName[], loaded: ModeName[] = []): ModeLoaders {
  const loader = (name: ModeName) => async (): Promise<ModeDefinition> => {
    loaded.push(name)
    return {
      summary: '',
      probe: async () => {
        if (name === 'nftables' && !runnable.includes(name)) throw new Error('nft crashed')
        return [
          {
            what: `kernel part of ${name}`,
            ok: runnable.includes(name),
            required: true,
            seen: 'not found',
            fix: `load ${name}`,
          },
          { what: 'a luxury', ok: false, required: false, seen: 'absent', fix: 'none' },
        ]
      },
      syncPeriods: () => ({ minMs: 1, syncMs: 1 }),
      planner: () => ({
        plan: ({ family }) => ({ family }),
        render: () => '',
        renderChanges: () => '',
        parts: () => PersistentMap.empty<object>(),
        only: (plan) => plan,
      }),
      create: () => Promise.reject(new Error('not in this test')),
      differences: () => Promise.resolve([]),
      cleanup: () => Promise.resolve(),
    }
  }
  const names = ['userspace', 'winuserspace', 'iptables', 'ipvs', 'nftables', 'ebpf'] as const
  return Object.fromEntries(names.map((name) => [name, loader(name)]))
}

t.test('ebpf falls back to nftables, and only then to the fallback', async (t) => {
  const request = { mode: 'ebpf', fallback: 'userspace' } as const
  const chosen = await chooseMode(request, log, loaders(['nftables', 'userspace']))
  t.equal(chosen.mode, 'nftables')
  t.same(
    chosen.passedOver.map(({ mode }) => mode),
    ['ebpf'],
  )
  const last = await chooseMode(request, log, loaders(['userspace']))
  t.equal(last.mode, 'userspace')
  await t.rejects(
    chooseMode({ ...request, fallback: 'none' }, log, loaders(['nftables', 'userspace'])),
    { message: /ebpf: kernel part of ebpf/ },
    'none means none',
  )
})

t.test('the requested mode runs if it can, even if optional parts are missing', async (t) => {
  const loaded: ModeName[] = []
  const chosen = await chooseMode(
    { mode: 'ipvs', fallback: 'userspace' },
    log,
    loaders(['ipvs'], loaded),
  )
  t.equal(chosen.mode, 'ipvs')
  t.same(chosen.passedOver, [])
  t.same(loaded, ['ipvs'], 'nothing else was loaded')
})

t.test(
  'US76: ipvs without IPVS in the kernel falls back to userspace and says what is missing',
  async (t) => {
    const chosen = await chooseMode(
      { mode: 'ipvs', fallback: 'userspace' },
      log,
      loaders(['userspace']),
    )
    t.equal(chosen.mode, 'userspace')
    t.match(chosen.passedOver, [
      { mode: 'ipvs', missing: [{ what: 'kernel part of ipvs', fix: 'load ipvs' }] },
    ])
    t.equal(chosen.passedOver[0]?.missing.length, 1, 'optional findings are no reason')
  },
)

t.test('iptables is the default mode; auto tries nftables, iptables, userspace', async (t) => {
  const choose = async (mode: '' | 'auto', runnable: ModeName[]) =>
    (await chooseMode({ mode, fallback: 'userspace' }, log, loaders(runnable))).mode
  t.equal(await choose('', ['nftables', 'iptables', 'userspace']), 'iptables')
  t.same([modeMeant('', 'linux'), modeMeant('', 'win32')], ['iptables', 'winuserspace'])
  t.equal(await choose('auto', ['nftables', 'iptables', 'userspace']), 'nftables')
  t.equal(
    await choose('auto', ['iptables', 'userspace']),
    'iptables',
    'a probe that throws counts as a no',
  )
  t.equal(await choose('auto', ['userspace']), 'userspace')
})

t.test('a reason that may pass is waited for, and a lack of this node is not', async (t) => {
  const all = loaders(['nftables', 'userspace'])
  const asked: string[] = []
  const failing = (mayPass: boolean, times: number): ModeLoaders => ({
    ...all,
    nftables: async () => {
      const definition = await all.nftables?.()
      if (!definition) throw new Error('no nftables here')
      const lack = { what: 'nft', ok: false, required: true, seen: 'killed', fix: 'none', mayPass }
      const probe: typeof definition.probe = (context) => {
        asked.push('nftables')
        return asked.length > times ? definition.probe(context) : Promise.resolve([lack])
      }
      return { ...definition, probe }
    },
  })
  const choose = async (mayPass: boolean, times: number) => {
    asked.length = 0
    const request = { mode: 'nftables', fallback: 'userspace' } as const
    const { mode } = await chooseMode(request, log, failing(mayPass, times))
    return `${mode} after ${asked.length}`
  }
  t.equal(await choose(true, 1), 'nftables after 2')
  t.equal(await choose(true, Infinity), 'userspace after 3')
  t.equal(await choose(false, Infinity), 'userspace after 1')
})

t.test('a mode that does not load is passed over', async (t) => {
  const without = {
    ...loaders(['userspace']),
    iptables: () => Promise.reject(new Error('no koffi')),
  }
  const request = { mode: 'iptables', fallback: 'userspace' } as const
  const { mode, passedOver } = await chooseMode(request, log, without)
  t.equal(mode, 'userspace')
  t.match(passedOver, [{ mode: 'iptables', missing: [{ seen: 'no koffi' }] }])
})

t.test(
  'if no mode can run, the error names each tried mode, what it lacks and what to do',
  async (t) => {
    await t.rejects(chooseMode({ mode: 'ipvs', fallback: 'none' }, log, loaders(['userspace'])), {
      kind: 'unsupported',
      message: /ipvs: kernel part of ipvs \(not found\): load ipvs$/,
    })
    await t.rejects(chooseMode({ mode: 'nftables', fallback: 'userspace' }, log, loaders([])), {
      message: /nftables: .*nft crashed.*userspace: kernel part/,
    })
  },
)

t.test(
  'on Windows the modes of the original mean winuserspace, and no other code is loaded',
  async (t) => {
    const all = loaders(['winuserspace', 'nftables', 'iptables', 'userspace'])
    for (const mode of ['', 'auto', 'userspace', 'winuserspace'] as const) {
      const chosen = await chooseMode({ mode, fallback: 'none' }, log, all, 'win32')
      t.same([chosen.mode, chosen.passedOver], ['winuserspace', []], mode)
    }
    const loaded: ModeName[] = []
    const some = loaders(['winuserspace', 'nftables'], loaded)
    const request = { mode: 'nftables', fallback: 'userspace' } as const
    const chosen = await chooseMode(request, log, some, 'win32')
    t.same([chosen.mode, loaded], ['winuserspace', ['winuserspace']])
    t.match(chosen.passedOver, [{ mode: 'nftables', missing: [{ what: /Linux/ }] }])
  },
)

t.test('winuserspace does not run on Linux, and nothing runs where there is neither', async (t) => {
  const all = loaders(['winuserspace', 'userspace', 'nftables', 'iptables'])
  const request = { mode: 'winuserspace', fallback: 'none' } as const
  await t.rejects(chooseMode(request, log, all, 'linux'), {
    message: /the operating system Windows .*--userspace-portals=addresses does the same here/,
  })
  const any = { mode: 'auto', fallback: 'userspace' } as const
  await t.rejects(chooseMode(any, log, all, 'other'), { message: /runs on Linux and Windows/ })
})
