import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import t from 'tap'
import { UdpClientTable } from '../../../lib/modes/userspace/datapath/udp-client-table.js'
import { blockFor } from '../../support/block.js'

class Owner {
  held = 0
}

class Client {
  older: Client | undefined
  newer: Client | undefined
  unanswered = 0
  usedAt: number
  ended = ''
  readonly owner: Owner
  readonly #table: UdpClientTable

  constructor(table: UdpClientTable, now: number, owner = new Owner()) {
    this.#table = table
    this.usedAt = now
    this.owner = owner
    owner.held++
  }

  end(reason: string): void {
    this.ended = reason
    this.owner.held--
    this.#table.remove(this)
  }
}

t.test('a full table removes the client that was silent longest, also if it waits', async (t) => {
  let now = 0
  const table = new UdpClientTable(() => now, 3)
  const add = () => {
    const client = new Client(table, ++now)
    table.add(client, 60_000)
    table.asked(client, 1)
    return client
  }
  const [a, b, c] = [add(), add(), add()]
  now++
  table.answered(a, 1)
  const d = add()
  t.same([a.ended, b.ended, c.ended, d.ended], ['', 'evicted', '', ''], 'b asked first of the rest')
  now++
  table.asked(c, 1)
  const e = add()
  t.same([a.ended, c.ended, d.ended, e.ended], ['evicted', '', '', ''], 'a is older than d')
  t.equal(table.size, 3)
  for (const client of [c, d, e]) client.end('done')
  t.equal(table.size, 0)
})

t.test('a flood to one listener ends none of the clients of others', async (t) => {
  let now = 0
  const table = new UdpClientTable(() => now, 64)
  const add = (owner: Owner) => {
    const client = new Client(table, ++now, owner)
    table.add(client, 60_000)
    table.asked(client, 1)
    return client
  }
  const [small, flooded] = [new Owner(), new Owner()]
  const slow = [add(small), add(small)]
  const flood = Array.from({ length: 200 }, () => add(flooded))
  t.same(
    slow.map(({ ended }) => ended),
    ['', ''],
  )
  t.match(flood[0]?.ended, 'evicted', 'it is their own oldest that goes')
  const late = add(small)
  t.equal(late.ended, '')
  t.notOk(
    slow.some(({ ended }) => ended === 'evicted'),
    'a place is left for others',
  )
  t.ok(table.size > 50, 'the flood has the rest')
  for (const client of [...slow, ...flood, late]) if (client.ended === '') client.end('done')
})

t.test('US51: idle clients are removed, and clients that wait are removed later', async (t) => {
  const table = new UdpClientTable(() => performance.now())
  const ask = (datagrams: number) => {
    const client = new Client(table, performance.now())
    table.add(client, 50)
    table.asked(client, datagrams)
    return client
  }
  const [waiting, half, answered] = [ask(1), ask(2), ask(2)]
  table.answered(half, 1)
  table.answered(answered, 2)
  while (answered.ended === '') await new Promise((resolve) => setTimeout(resolve, 5))
  t.same([waiting.ended, half.ended], ['', ''])
  for (const client of [waiting, half]) client.end('done')
})

t.test('a client is not idle because the thread that reads its datagrams was late', async (t) => {
  const table = new UdpClientTable(() => performance.now())
  const client = new Client(table, performance.now())
  const socket = createSocket('udp4').bind(0, '127.0.0.1')
  t.teardown(() => void socket.close())
  await once(socket, 'listening')
  socket.on('message', () => table.asked(client, 1))
  // Long enough that a busy machine does not wait so long at the end.
  table.add(client, 2_000)
  table.answered(client, 0)
  const { port } = socket.address()
  setImmediate(() => {
    socket.send('?', port, '127.0.0.1')
  })
  setImmediate(() => {
    blockFor(2_500)
  })
  await once(socket, 'message')
  await new Promise((resolve) => setTimeout(resolve, 10))
  t.equal(client.ended, '')
  client.end('done')
})
