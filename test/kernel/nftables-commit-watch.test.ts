import t from 'tap'
import type { Received } from '../../lib/kernel/netlink/socket.js'
import { watchCommits } from '../../lib/kernel/nftables-netlink/commit-watch.js'

/** A watch in a namespace whose counter of transactions the test moves, with a socket that it fills. */
function watching() {
  const kernel = { generation: 5 }
  const inbox: Received[] = []
  const told = { foreign: 0, unclear: 0 }
  const watch = watchCommits({
    tables: [{ family: 'ip', name: 'kube-proxy' }],
    generation: () => kernel.generation,
    onForeign: () => told.foreign++,
    onUnclear: () => told.unclear++,
    openPipe: () => ({
      send: () => undefined,
      receive: () => inbox.shift() ?? { kind: 'nothing' },
      close: () => undefined,
    }),
  })
  const commit = (transactions: number) =>
    watch.around(() => {
      kernel.generation += transactions
      return Promise.resolve()
    })
  /** Events were lost, and somebody looks. */
  const overrun = async () => {
    inbox.push({ kind: 'overrun' })
    const end = new AbortController()
    const running = watch.run(end.signal)
    for (let left = 100; inbox.length > 0 && left > 0; left--) {
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
    end.abort()
    await running
  }
  return { kernel, told, commit, overrun }
}

void t.test('NF29: a transaction beside ours makes it unclear which was whose', async (t) => {
  const { told, commit } = watching()
  await commit(1)
  t.same(told, { foreign: 0, unclear: 0 })
  await commit(2)
  t.same(told, { foreign: 0, unclear: 1 })
})

void t.test('NF29: events that were lost matter only where others committed', async (t) => {
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
