import t from 'tap'
import type { Received } from '../../lib/kernel/netlink/socket.js'
import { isLittleEndian } from '../../lib/kernel/netlink/protocol.js'
import { MessageWriter } from '../../lib/kernel/netlink/message-writer.js'
import { watchCommits } from '../../lib/kernel/nftables-netlink/commit-watch.js'
import {
  families,
  generationAttributes,
  messages,
} from '../../lib/kernel/nftables-netlink/protocol.js'

const ports = { ours: 4711, other: 4712 }

/** A watch with a played kernel: the test sets the counter of transactions and fills the socket. */
function watching() {
  const kernel = { generation: 5, denies: false, isHeard: true, isMuted: false }
  const inbox: Received[] = []
  const told = { foreign: 0, unclear: 0 }
  const who: string[] = []
  const watch = watchCommits({
    tables: [{ family: 'ip', name: 'kube-proxy' }],
    port: ports.ours,
    generation: () => {
      if (kernel.denies) throw new Error('EPERM')
      return kernel.generation
    },
    onForeign: (by) => {
      told.foreign++
      who.push(by)
    },
    onUnclear: () => told.unclear++,
    openPipe: () => ({
      sendAside: () => Promise.reject(new Error('not played')),
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
  const commit = (transactions: number, commands = 1, refused?: Error) =>
    watch.around(() => {
      kernel.generation += transactions
      return refused ? Promise.reject(refused) : Promise.resolve(kernel.isHeard)
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
  const datagram = (type: number, port: number, write: (body: MessageWriter) => void) => {
    const data = Buffer.from(new MessageWriter().message(type, 0, write).finish(0))
    if (isLittleEndian) data.writeUInt32LE(port, 12)
    else data.writeUInt32BE(port, 12)
    return { kind: 'datagram', data } as const
  }
  const eventOf = (id: number, of: { family?: 'ip6'; name?: string; port?: number } = {}) =>
    datagram(messages.newRule, of.port ?? ports.other, (body) =>
      body
        .fixed(Uint8Array.of(families[of.family ?? 'ip'], 0, id >> 8, id & 0xff))
        .string(1, of.name ?? 'kube-proxy'),
    )
  /** What the kernel tells last of each transaction. */
  const endOf = (id: number, port: number) =>
    datagram(messages.newGeneration, port, (body) =>
      body
        .fixed(Uint8Array.of(0, 0, id >> 8, id & 0xff))
        .be32(generationAttributes.process, 4711)
        .string(generationAttributes.program, 'nft'),
    )
  return {
    ...{ kernel, told, who, commit },
    overrun: () => look({ kind: 'overrun' }),
    /** Delivers an event of a transaction and reads the watch. */
    event: (...of: Parameters<typeof eventOf>) => look(eventOf(...of)),
    ended: (port: number) => look(endOf(0, port)),
    /** Delivers all of a transaction, and the beginning of another one. */
    whole: (id: number) => {
      inbox.push(eventOf(id), eventOf(id), endOf(id, ports.other))
      return look(eventOf(id + 1))
    },
  }
}

void t.test('NF29: lost events matter only if another program committed', async (t) => {
  const { told, commit, overrun } = watching()
  await commit(1)
  await overrun()
  t.equal(told.unclear, 0, 'they were ours')
  const other = watching()
  other.kernel.generation++
  await other.commit(1)
  await other.overrun()
  t.equal(other.told.unclear, 1, 'one was not read')
  await other.overrun()
  t.equal(other.told.unclear, 1, 'that is known now')
  other.kernel.generation++
  await other.ended(ports.other)
  await other.overrun()
  t.equal(other.told.unclear, 1, 'one was read')
})

void t.test('NF29: nothing is sent for no commands, so nothing is counted', async (t) => {
  const { told, commit, overrun } = watching()
  await commit(0, 0)
  await overrun()
  t.equal(told.unclear, 0)
})

void t.test('NF29: the port of a transaction tells which events are ours', async (t) => {
  const { told, commit, event, ended } = watching()
  await commit(1)
  await event(6, { port: ports.ours })
  await ended(ports.ours)
  await event(7, { family: 'ip6' })
  await event(7, { name: 'kube-proxy-other' })
  t.equal(told.foreign, 0)
  await event(7)
  await event(7)
  t.equal(told.foreign, 1, 'once a transaction')
  await event(8)
  t.equal(told.foreign, 2)
})

void t.test('the process that changed a table is named where its end was read', async (t) => {
  const { who, whole } = watching()
  await whole(7)
  t.same(who, ['process 4711 (nft)', 'somebody else'])
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

void t.test('a large transaction of ours is not heard, and others are not missed', async (t) => {
  const { told, kernel, commit, event } = watching()
  t.equal(await commit(1, 10), true)
  t.equal(await commit(1, 100_000), false, 'the kernel writes no notification')
  t.equal(kernel.isHeard, true, 'afterwards all are heard again')
  t.same(told, { foreign: 0, unclear: 0 }, 'ours')
  await event(8)
  t.same(told, { foreign: 1, unclear: 0 })
  await commit(2, 100_000)
  t.same(told, { foreign: 1, unclear: 1 }, 'another one while nothing was heard')
  await t.rejects(commit(1, 100_000, new Error('refused')))
  t.same(told, { foreign: 1, unclear: 2 }, 'ours was refused, so that one was not ours')
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
    await event(6, { port: ports.ours })
    t.equal(kernel.isHeard, true)
    t.same(told, { foreign: 0, unclear: 1 })
  },
)
