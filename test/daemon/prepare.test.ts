import t from 'tap'
import { configWith } from '../../lib/config/load.js'
import { prepareMode } from '../../lib/daemon/node-settings.js'
import type { ModeName } from '../../lib/config/config.js'
import type { ModeDefinition } from '../../lib/modes/mode.js'
import type { ModeLoaders } from '../../lib/modes/registry.js'

/** What --init-only does if only these modes can run. */
async function prepared(config: Parameters<typeof configWith>[0], runnable: readonly ModeName[]) {
  const done: string[] = []
  const said: string[] = []
  const say = (_: object, text: string) => void said.push(text)
  const log = { debug: say, info: say, warn: say, error: say }
  const entries = (['nftables', 'iptables', 'ipvs', 'userspace', 'ebpf'] as const).map((name) => {
    const need = { what: 'a module', required: true, seen: '', fix: `modprobe ${name}` }
    const definition: Partial<ModeDefinition> = {
      probe: async () => {
        done.push(`probe ${name}`)
        return [{ ...need, ok: runnable.includes(name) }]
      },
      prepare: async () => void done.push(`prepare ${name}`),
      cleanup: async () => void done.push(`clean up ${name}`),
    }
    return [name, async () => definition]
  })
  const loaders = Object.fromEntries(entries) as ModeLoaders
  await prepareMode(configWith(config), log, loaders)
  return { done, said }
}

t.test('auto prepares the first mode that runs, and tries those before it', async (t) => {
  const { done, said } = await prepared({ mode: 'auto' }, ['iptables', 'userspace'])
  t.same(done, ['probe nftables', 'probe iptables', 'prepare iptables', 'clean up ebpf'])
  t.same(said, ['this node cannot run nftables mode', 'Prepared this node for iptables mode'])
})

t.test('no mode means iptables; a mode that cannot run prepares its fallback', async (t) => {
  const { done } = await prepared({}, ['iptables'])
  t.same(done, ['probe iptables', 'prepare iptables', 'clean up ebpf'])
  const asked = await prepared({ mode: 'ipvs', modeFallback: 'nftables' }, ['nftables'])
  t.same(asked.done, ['probe ipvs', 'probe nftables', 'prepare nftables', 'clean up ebpf'])
})

t.test('if no mode runs, all possible ones were tried, and the log says so', async (t) => {
  const { done, said } = await prepared({ mode: 'auto' }, [])
  t.same(done, ['probe nftables', 'probe iptables', 'probe userspace'])
  t.same(said, ['this mode could not be prepared'])
})

t.test('programs of ebpf mode go, because the daemon may not detach them', async (t) => {
  const { done } = await prepared({ mode: 'ebpf' }, ['ebpf'])
  t.same(done, ['probe ebpf', 'prepare ebpf'], 'but they stay for the next daemon in ebpf mode')
  const fallen = await prepared({ mode: 'ebpf' }, ['nftables'])
  t.match(fallen.done, ['probe ebpf', 'probe nftables', 'prepare nftables', 'clean up ebpf'])
})
