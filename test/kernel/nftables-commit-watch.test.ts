import t from 'tap'
import type { Received } from '../../lib/kernel/netlink/socket.js'
import { MessageWriter } from '../../lib/kernel/netlink/message-writer.js'
import type { TableRef } from '../../lib/kernel/nftables/model.js'
import { watchCommits } from '../../lib/kernel/nftables-netlink/commit-watch.js'
import { families, messages } from '../../lib/kernel/nftables-netlink/protocol.js'

/** A watch with a played kernel: the test sets the counter of transactions and fills the socket. */
function watching() {
  const kernel = { generation: 5, denies: false, isHeard: true, isMuted: false }
  const inbox: Received[] = []
  const told = { foreign: 0, unclear: 0 }
  const watch = watchCommits({
    tables: [{ family: 'ip', name: 'kube-proxy' }],
    generation: () => {
      if (kernel.denies) throw new Error('EPERM')
      return kernel.generation
    },
    onForeign: () => told.foreign++,
    onUnclear: () => told.unclear++,
    openPipe: () => ({
      send: () => undefined,
      receive: () => inbox.shift() ?? { kind: 'nothing' },
      hear: (isWanted) => {
        if (isWanted && kernel.isMuted) return false
        kernel.isHeard = isWanted
        return true
      },
      close: () => undefined,
    }),
  })
  const commit = (transactions: number, commands = 1) =>
    watch.around(() => {
      kernel.generation += transactions
      return Promise.resolve(kernel.isHeard)
    }, commands)
  const look = async (received: Received) => {
    inbox.push(received)
    const end = new AbortController()
    const running = watch.run(end.signal)
    for (let left = 3000; inbox.length > 0 && left > 0; left--) {
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
    end.abort()
    await running
  }
  /** Delivers the event of a transaction and reads the watch. */
  const event = (id: number, { family = 'ip', name = 'kube-proxy' }: Partial<TableRef> = {}) => {
    const message = new MessageWriter().message(messages.newRule, 0, (body) =>
      body.fixed(Uint8Array.of(families[family], 0, id >> 8, id & 0xff)).string(1, name),
    )
    return look({ kind: 'datagram', data: message.finish(0) })
  }
  return { kernel, told, commit, overrun: () => look({ kind: 'overrun' }), event }
}

void t.test('NF29: with two transactions at once it is unclear which one is ours', async (t) => {
  const { told, commit } = watching()
  await commit(1)
  t.same(told, { foreign: 0, unclear: 0 })
  await commit(2)
  t.same(told, { foreign: 0, unclear: 1 })
})

void t.test('NF29: lost events matter only if another program committed', async (t) => {
  const { told, commit, overrun } = watching()
  await commit(1)
  await overrun()
  t.equal(told.unclear, 0, 'they were ours')
  const other = watching()
  other.kernel.generation++
  await other.commit(1)
  await other.overrun()
  t.equal(other.told.unclear, 1, 'one came before ours, and was not read')
  await other.overrun()
  t.equal(other.told.unclear, 1, 'that is known now')
})

void t.test('NF29: the number of a transaction tells which events are ours', async (t) => {
  const { kernel, told, commit, event } = watching()
  await commit(1)
  const ours = kernel.generation
  await event(ours)
  await event(ours + 1, { family: 'ip6' })
  await event(ours + 1, { name: 'kube-proxy-other' })
  t.equal(told.foreign, 0)
  await event(ours + 1)
  await event(ours + 1)
  t.equal(told.foreign, 1, 'once a transaction')
  await event(ours + 2)
  t.equal(told.foreign, 2)
})

void t.test(
  'NF29: lost events while the counter cannot be read do not end the watch',
  async (t) => {
    const { kernel, told, overrun } = watching()
    kernel.denies = true
    await overrun()
    t.equal(told.unclear, 1, 'the kernel has to be looked at')
    kernel.denies = false
    await overrun()
    t.equal(told.unclear, 1, 'nobody committed')
  },
)

void t.test('NF29: our 16-bit transaction numbers are forgotten before they repeat', async (t) => {
  const { kernel, told, commit, event } = watching()
  await commit(1)
  const old = kernel.generation
  for (let count = 0; count < 4096; count++) await commit(1)
  await event(old + 1)
  t.equal(told.foreign, 0, 'still known')
  await event(old)
  t.equal(told.foreign, 1)
})

void t.test('a large transaction of ours is not heard, and others are not missed', async (t) => {
  const { told, kernel, commit, event } = watching()
  t.equal(await commit(1, 10), true)
  t.equal(await commit(1, 100_000), false, 'the kernel writes no notification')
  t.equal(kernel.isHeard, true, 'afterwards all are heard again')
  await event(7)
  t.same(told, { foreign: 0, unclear: 0 }, 'ours')
  await event(8)
  t.same(told, { foreign: 1, unclear: 0 })
  await commit(2, 100_000)
  t.same(told, { foreign: 1, unclear: 1 }, 'another one while nothing was heard')
})

void t.test(
  'a watch that may not hear again for a while knows that it missed others',
  async (t) => {
    const { told, kernel, commit, event } = watching()
    kernel.isMuted = true
    await commit(1, 100_000)
    t.equal(kernel.isHeard, false)
    kernel.generation++
    kernel.isMuted = false
    await event(6)
    t.equal(kernel.isHeard, true)
    t.same(told, { foreign: 0, unclear: 1 })
  },
)
