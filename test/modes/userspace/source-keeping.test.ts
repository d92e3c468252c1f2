/**
 * When the mode prepares the kernel to keep the address of clients, and what it logs on failure.
 */
import t from 'tap'
import { defaultConfig } from '../../../lib/config/load.js'
import { KernelError } from '../../../lib/errors.js'
import type { Run } from '../../../lib/kernel/iptables.js'
import { SourceSwitch } from '../../../lib/modes/userspace/datapath/source-keeper.js'
import { openPortals } from '../../../lib/modes/userspace/portals/open-portals.js'
import { userspaceSettings, type UserspaceSettings } from '../../../lib/modes/userspace/settings.js'
import { SourceKeeping } from '../../../lib/modes/userspace/portals/source-keeping.js'

const settings = userspaceSettings(defaultConfig())

function keeping(options: { isRequired?: boolean; fails?: KernelError } = {}) {
  const state = { fails: options.fails, done: [] as string[], log: [] as string[] }
  const note = (fields: object, message: string) => {
    state.log.push('reason' in fields ? `${message}: ${String(fields.reason)}` : message)
  }
  const on = new SourceSwitch()
  const made = new SourceKeeping('IPv6', {
    routing: {
      ensure: () => {
        state.done.push('ensure')
        return state.fails ? Promise.reject(state.fails) : Promise.resolve()
      },
      remove: () => Promise.resolve(void state.done.push('remove')),
      close: () => void state.done.push('close'),
    },
    switch: on,
    isRequired: options.isRequired ?? false,
    log: { debug: () => undefined, info: note, warn: note, error: note },
  })
  return { made, state, cells: () => [...new Int32Array(on.shared)] }
}

t.test(
  'US81: the data paths keep addresses from when the kernel is ready until the end',
  async (t) => {
    const { made, state, cells } = keeping()
    await made.look()
    t.same(state.done, [], 'nothing wants it')
    await made.use()
    await made.use()
    t.same(cells(), [0, 1])
    await made.look()
    await made.tidy()
    t.same(state.done, ['ensure', 'ensure'], 'once, and again to look after it')
    await made.remove()
    t.same(cells(), [0, 0])
    t.same(state.done.slice(2), ['remove', 'close'])
  },
)

t.test('US81: a node that cannot do it says so once', async (t) => {
  const denied = new KernelError('denied', 'no rights')
  const { made, state, cells } = keeping({ fails: denied })
  await made.use()
  await made.use()
  t.same(cells(), [0, 0])
  t.same(state.done, ['ensure'])
  t.match(state.log, [/^endpoints see this node as their client.*no rights/])
  t.equal(state.log.length, 1)
  await made.tidy()
  t.same(state.done.slice(1), ['remove', 'close'])
  await t.rejects(keeping({ fails: denied, isRequired: true }).made.use(), {
    ...{ kind: 'denied', message: `--userspace-source-address=keep: no rights; ${advice}` },
  })
})

const advice =
  'keep needs iptables and CAP_NET_ADMIN, and the proxy does not start without: choose auto or hide if it should'

t.test('US81: a proxy that does not start without iptables names the flag', async (t) => {
  const note = () => undefined
  const log = { debug: note, info: note, warn: note, error: note }
  const run: Run = () => Promise.resolve({ code: 4, stdout: '', stderr: 'Permission denied' })
  const opened = (
    sourceAddress: UserspaceSettings['sourceAddress'],
    portals: 'auto' | 'iptables',
  ) => openPortals({ ...settings, sourceAddress, portals }, ['IPv4'], { log, run })
  const refusal = {
    kind: 'denied',
    message: /^--userspace-source-address=keep: try IPv4 iptables: /,
  }
  await t.rejects(opened('keep', 'auto'), refusal)
  await t.rejects(opened('keep', 'auto'), { message: new RegExp(`${advice}$`) })
  await t.rejects(opened('keep', 'iptables'), refusal)
  await t.rejects(opened('hide', 'iptables'), { message: /^try IPv4 iptables: / })
  await t.resolves(opened('hide', 'auto'), 'addresses of this machine')
})

t.test('a start waits for the xtables lock, but not for ever', async (t) => {
  const warned: string[] = []
  const note = () => undefined
  const warn = (_fields: object, message: string) => void warned.push(message)
  const log = { debug: note, info: note, warn, error: note }
  let left = 2
  const run: Run = (file, args) => {
    if (args.includes('--version')) {
      return Promise.resolve({ code: 0, stdout: `${file} v1.8.9 (legacy)`, stderr: '' })
    }
    const isLocked = !file.endsWith('-save') && left-- > 0
    const stderr = 'Another app is currently holding the xtables lock.'
    return Promise.resolve(isLocked ? { code: 4, stdout: '', stderr } : { ...done })
  }
  const opened = (syncPeriodMs: number) =>
    openPortals({ ...settings, syncPeriodMs, portals: 'iptables' }, ['IPv4'], {
      log,
      // Another one, because what a run has answered is not asked again.
      run: (...call) => run(...call),
    })
  await t.resolves(opened(30_000))
  t.same(warned, ['the xtables lock is held, waiting'])
  left = 2
  await t.rejects(opened(0), { message: /holds the xtables lock/ })
})

const done = { code: 0, stdout: '', stderr: '' }

t.test('US81: what passes is tried again', async (t) => {
  const { made, state, cells } = keeping({ fails: new KernelError('busy', 'locked') })
  await made.use()
  await made.use()
  t.equal(state.log.length, 1, 'and said once')
  state.fails = undefined
  await made.use()
  t.same(cells(), [0, 1])
})
