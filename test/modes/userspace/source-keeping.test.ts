/**
 * When the mode prepares the kernel to keep the address of clients, and what it logs on failure.
 */
import t from 'tap'
import { KernelError } from '../../../lib/errors.js'
import { SourceSwitch } from '../../../lib/modes/userspace/datapath/source-keeper.js'
import { SourceKeeping } from '../../../lib/modes/userspace/portals/source-keeping.js'

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
    log: { debug: note, info: note, warn: note, error: note },
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
  await t.rejects(keeping({ fails: denied, isRequired: true }).made.use(), denied)
})

t.test('US81: what passes is tried again', async (t) => {
  const { made, state, cells } = keeping({ fails: new KernelError('busy', 'locked') })
  await made.use()
  await made.use()
  t.equal(state.log.length, 1, 'and said once')
  state.fails = undefined
  await made.use()
  t.same(cells(), [0, 1])
})
