import fc from 'fast-check'
import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import { openChannel } from '../../lib/kernel/netlink/channel.js'
import { changeInBatches } from '../../lib/kernel/netlink/in-batches.js'
import { resolveFamily } from '../../lib/kernel/ipvs.js'
import {
  attributesOf,
  forEachMessage,
  readString,
  readU16,
  readU32,
  readU64,
  type Message,
} from '../../lib/kernel/netlink/message-reader.js'
import { MessageWriter } from '../../lib/kernel/netlink/message-writer.js'
import { aligned, controlTypes, flags, protocols } from '../../lib/kernel/netlink/protocol.js'
import { openSocket, type NetlinkPipe, type Received } from '../../lib/kernel/netlink/socket.js'
import { subscribe } from '../../lib/kernel/netlink/subscription.js'
import type { Libc } from '../../lib/kernel/netlink/socket.js'
import { bytesOf, examplesOf, near } from '../support/corpus.js'
import { enterPrivateNetns } from '../support/private-netns.js'

const noNetns = enterPrivateNetns()
const needsNetns = noNetns === undefined ? {} : { skip: noNetns }

const rtm = { newLink: 16, getLink: 18, newAddress: 20, deleteAddress: 21, getAddress: 22 }

function messagesIn(datagram: Buffer): Message[] {
  const messages: Message[] = []
  forEachMessage(datagram, (message) => messages.push(message))
  return messages
}

/** ifaddrmsg + IFA_LOCAL for an address on the loopback device. */
function addressMessage(writer: MessageWriter, address: readonly number[], extra = 0) {
  const verb = extra & flags.create ? rtm.newAddress : rtm.deleteAddress
  writer.message(verb, flags.ack | extra, (message) =>
    message.fixed(Uint8Array.of(2, 32, 0, 0, 1, 0, 0, 0)).bytes(2, Uint8Array.from(address)),
  )
}

t.test('attributes of every kind are read back as they were written', (t) => {
  const writer = new MessageWriter(8).message(77, flags.ack, (message) =>
    message
      .fixed(Uint8Array.of(1, 2, 3, 4, 5))
      .u8(1, 200)
      .u16(2, 60_000)
      .u32(3, 4_000_000_000)
      .bytes(4, Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0x80))
      .be16(5, 0x1234)
      .be32(6, 0x12345678)
      .be64(7, 0x1234567890n)
      .string(8, 'kube-ipvs0')
      .bytes(9, new Uint8Array(0))
      .nest(10, (inner) => inner.u8(1, 1).nest(2, (deep) => deep.string(1, 'ü'))),
  )
  const [message] = messagesIn(writer.finish(5))
  t.match(message, { type: 77, sequence: 5, flags: flags.ack | flags.request })
  const read = attributesOf(message!.payload, aligned(5))
  t.equal(read.get(1)![0], 200)
  t.equal(readU16(read.get(2)!, 0), 60_000)
  t.equal(readU32(read.get(3)!, 0), 4_000_000_000)
  t.equal(readU64(read.get(4)!, 0), 2n ** 63n)
  t.equal(read.get(5)!.toString('hex'), '1234')
  t.equal(read.get(6)!.toString('hex'), '12345678')
  t.equal(read.get(7)!.toString('hex'), '0000001234567890')
  t.equal(readString(read.get(8)!), 'kube-ipvs0')
  t.equal(read.get(9)!.length, 0)
  const inner = attributesOf(read.get(10)!)
  t.equal(readString(attributesOf(inner.get(2)!).get(1)!), 'ü')
  t.throws(() => writer.message(1, 0, (big) => big.bytes(1, new Uint8Array(70_000))), RangeError)
  t.end()
})

t.test('a message is the same wherever its buffer had to grow', (t) => {
  const written = (room: number) =>
    new MessageWriter(room)
      .message(77, 0, (message) =>
        message
          .fixed(Uint8Array.of(1, 2, 3, 4))
          .u8(1, 2)
          .u16(2, 3)
          .u32(3, 4)
          .be16(4, 5)
          .be32(5, 6),
      )
      .message(78, 0, (message) => message.be64(1, 7n).string(2, 'a').u8(3, 8))
      .finish(1)
      .toString('hex')
  const whole = written(4096)
  for (let room = 1; room < whole.length / 2; room++) t.equal(written(room), whole, `room ${room}`)
  t.end()
})

t.test('any sequence of messages and byte attributes survives a round trip', (t) => {
  const attribute = fc.tuple(fc.integer({ min: 1, max: 0x3fff }), fc.uint8Array({ maxLength: 40 }))
  fc.assert(
    fc.property(fc.array(fc.uniqueArray(attribute, { selector: (a) => a[0] })), (batch) => {
      const writer = new MessageWriter(1)
      for (const attributes of batch) {
        writer.message(99, 0, (message) => {
          for (const [type, value] of attributes) message.bytes(type, value)
        })
      }
      const read = messagesIn(writer.finish(1)).map((message) =>
        Array.from(attributesOf(message.payload), ([type, value]) => [
          type,
          Uint8Array.from(value),
        ]),
      )
      t.strictSame(read, batch)
    }),
    { numRuns: 50 },
  )
  t.end()
})

t.test('cut messages and wrong lengths never cause reads outside a datagram', (t) => {
  fc.assert(
    fc.property(fc.oneof(fc.uint8Array({ maxLength: 80 }), near('netlink')), (bytes) => {
      for (const message of messagesIn(Buffer.from(bytes))) attributesOf(message.payload)
    }),
    { numRuns: 500, examples: examplesOf(bytesOf('netlink')) },
  )
  t.end()
})

t.test('the kernel answers a request, and a refused request says why', needsNetns, (t) => {
  const channel = openChannel(protocols.route)
  t.teardown(() => channel.close())
  const link = (name: string) =>
    new MessageWriter().message(rtm.getLink, flags.ack, (message) =>
      message.fixed(new Uint8Array(16)).string(3, name),
    )
  const [reply] = channel.request(link('lo'), 'look up device lo')
  t.equal(readString(attributesOf(reply!.payload, 16).get(3)!), 'lo')
  t.throws(() => channel.request(link('none'), 'look up device none'), {
    name: 'KernelError',
    kind: 'not-found',
    message: /look up device none: .*ENODEV/,
  })
  const bad = new MessageWriter()
  addressMessage(bad, [1, 2], flags.create)
  t.throws(() => channel.request(bad, 'add half an address'), {
    name: 'KernelError',
    kind: 'invalid',
    // The text is the kernel's own, from the extended acknowledgement, and not that of the C
    // library.
    message: /^add half an address: Attribute failed policy validation \(ERANGE\)/,
  })
  t.end()
})

t.test('one datagram carries many messages; failures are reported by index', needsNetns, (t) => {
  const channel = openChannel(protocols.route)
  t.teardown(() => channel.close())
  const writer = new MessageWriter()
  for (const last of [1, 2, 1, 3]) {
    addressMessage(writer, [10, 9, 8, last], flags.create | flags.excl)
  }
  const answer = channel.transact(writer)
  t.equal(answer.acknowledged, 3)
  t.strictSame([...answer.failures.keys()], [2])
  t.equal(answer.failures.get(2)!.code, 'EEXIST')
  t.end()
})

t.test('many short dumps in a row share the event loop, too', needsNetns, async (t) => {
  const channel = openChannel(protocols.route, { sliceMs: 5 })
  t.teardown(() => channel.close())
  const request = new MessageWriter().message(rtm.getAddress, flags.dump, (message) =>
    message.fixed(Uint8Array.of(2, 0, 0, 0, 0, 0, 0, 0)),
  )
  let turns = 0
  const ticking = setInterval(() => turns++, 0)
  for (let count = 0; count < 200; count++) {
    // Each is shorter than a slice of time.
    const until = performance.now() + 0.5
    await channel.dump(request, { action: 'list addresses', parse: () => undefined })
    while (performance.now() < until);
  }
  clearInterval(ticking)
  t.ok(turns >= 3, `timers ran ${turns} times meanwhile`)
})

t.test('a long dump is read in parts while the event loop goes on', needsNetns, async (t) => {
  const channel = openChannel(protocols.route, { receiveBufferBytes: 4 << 20, sliceMs: 0 })
  t.teardown(() => channel.close())
  const writer = new MessageWriter()
  for (let index = 0; index < 3000; index++) {
    addressMessage(writer, [10, 77, index >> 8, index & 255], flags.create)
  }
  t.equal(channel.transact(writer).acknowledged, 3000)
  let turns = 0
  const ticking = setInterval(() => turns++, 0)
  const request = new MessageWriter().message(rtm.getAddress, flags.dump, (message) =>
    message.fixed(Uint8Array.of(2, 0, 0, 0, 0, 0, 0, 0)),
  )
  const parse = (message: Message) => {
    const address = attributesOf(message.payload, 8).get(2)
    return address?.[1] === 77 ? address.join('.') : undefined
  }
  const action = 'list addresses'
  const [first, second] = await Promise.all([
    channel.dump(request, { action, parse }),
    channel.dump(request, { action, parse }),
  ])
  clearInterval(ticking)
  t.equal(new Set(first).size, 3000)
  t.equal(second.length, 3000, 'a second dump waits for the first')
  t.ok(turns > 0, 'timers ran meanwhile')
  await t.rejects(
    channel.dump(request, {
      action,
      parse: () => {
        throw new Error('cannot read this')
      },
    }),
    { message: 'cannot read this' },
  )
  t.equal((await channel.dump(request, { action, parse })).length, 3000, 'still usable after')
})

t.test('generic netlink families are found by name', needsNetns, (t) => {
  const channel = openChannel(protocols.generic)
  t.teardown(() => channel.close())
  t.equal(resolveFamily(channel, 'nlctrl'), 16)
  t.throws(() => resolveFamily(channel, 'NO_SUCH'), { name: 'KernelError', kind: 'not-found' })
  t.end()
})

t.test('multicast notifications arrive without waiting for them', needsNetns, async (t) => {
  const stop = new AbortController()
  const heard = new Promise<string>((resolve, reject) => {
    const subscription = subscribe(protocols.route, {
      groups: [5],
      everyMs: 5,
      onMessage: (message) => {
        const address = attributesOf(message.payload, 8).get(2)
        if (message.type === rtm.newAddress && address) resolve(address.join('.'))
      },
      onOverrun: () => undefined,
    })
    subscription.run(stop.signal).catch(reject)
  })
  const channel = openChannel(protocols.route)
  const writer = new MessageWriter()
  addressMessage(writer, [10, 1, 1, 1], flags.create)
  channel.request(writer, 'add address')
  const keepAlive = setInterval(() => undefined, 1000)
  t.equal(await heard, '10.1.1.1')
  clearInterval(keepAlive)
  stop.abort()
  channel.close()
})

/** A pipe that answers each request with the datagrams that the next script returns. */
function scripted(
  scripts: ((sequence: number) => (Buffer | 'overrun' | 'later')[])[],
): NetlinkPipe {
  const queue: (Buffer | 'overrun' | 'later')[] = []
  return {
    send: (data) => {
      queue.push(...(scripts.shift()?.(readU32(Buffer.from(data), 8)) ?? []))
    },
    receive: (): Received => {
      const next = queue.shift()
      if (next === undefined || next === 'later') return { kind: 'nothing' }
      return next === 'overrun' ? { kind: 'overrun' } : { kind: 'datagram', data: next }
    },
    sendAside: () => Promise.reject(new Error('not played')),
    hear: () => true,
    close: () => undefined,
  }
}

function part(sequence: number, value: number, more = 0): Buffer {
  const item = new MessageWriter().message(20, flags.multi | more, (message) =>
    message.u8(1, value),
  )
  return Buffer.from(item.finish(sequence))
}

function end(sequence: number, errno = 0): Buffer {
  const code = Buffer.alloc(4)
  code.writeInt32LE(-errno)
  const done = new MessageWriter().message(controlTypes.done, flags.multi, (m) => m.fixed(code))
  return Buffer.from(done.finish(sequence))
}

t.test('an interrupted or overrun dump is read again, without foreign messages', async (t) => {
  const channelOf = (...scripts: Parameters<typeof scripted>[0]) => {
    const pipe = scripted(scripts)
    return openChannel(0, { openPipe: () => pipe })
  }
  const read = (channel: ReturnType<typeof channelOf>) =>
    channel.dump(new MessageWriter().message(1, flags.dump), {
      action: 'list things',
      parse: (message) => attributesOf(message.payload).get(1)?.[0],
    })
  t.strictSame(
    await read(
      channelOf(
        (s) => [part(s, 1), part(s, 2, flags.dumpInterrupted), end(s)],
        (s) => [part(s, 3), 'overrun', end(s)],
        (s) => [part(s - 1, 9), part(s, 4), 'later', part(s, 5), end(s)],
      ),
    ),
    [4, 5],
  )
  await t.rejects(read(channelOf((s) => [part(s, 1), end(s, 1)])), {
    kind: 'denied',
    message: /^list things: .*EPERM/,
  })
  const always = (s: number) => [part(s, 1, flags.dumpInterrupted), end(s)]
  const busy = { name: 'KernelError', kind: 'busy' }
  await t.rejects(read(channelOf(...Array.from({ length: 9 }, () => always))), busy)
})

t.test('changes in batches whose answers are lost are not taken for done', async (t) => {
  const change = (...scripts: Parameters<typeof scripted>[0]) =>
    changeInBatches(
      openChannel(0, { openPipe: () => scripted(scripts) }),
      Array.from({ length: 130 }, (_, index) => index),
      (writer, index, ack) => void writer.message(20, ack, (message) => message.u32(1, index)),
    )
  const answer = (sequence: number, errno = 0) => {
    const code = Buffer.alloc(20)
    code.writeInt32LE(-errno)
    const ack = new MessageWriter().message(controlTypes.error, 0, (m) => m.fixed(code))
    return Buffer.from(ack.finish(sequence))
  }
  const lastOfFirst = (s: number) => [answer(s + 127)]
  t.match(await change(lastOfFirst, (s) => [answer(s + 1)]), { refused: [] })
  const refused = await change(lastOfFirst, (s) => [answer(s, 17), answer(s + 1)])
  t.match(refused, { refused: [{ change: 128 }] })
  const lost = { name: 'KernelError', kind: 'busy', message: /answers were lost/ }
  await t.rejects(
    change(lastOfFirst, () => []),
    lost,
  )
  await t.rejects(
    change((s) => ['overrun', answer(s + 127)]),
    lost,
  )
})

t.test('a missing answer and a lost answer are different errors', (t) => {
  const silent = openChannel(0, { openPipe: () => scripted([() => []]) })
  const message = () => new MessageWriter().message(20, flags.ack)
  t.throws(() => silent.request(message(), 'ask'), /ask: the kernel did not answer/)
  const lossy = openChannel(0, { openPipe: () => scripted([() => ['overrun']]) })
  t.throws(() => lossy.request(message(), 'ask'), { name: 'KernelError', kind: 'busy' })
  t.end()
})

t.test('the socket repeats interrupted calls and classifies other errors', async (t) => {
  const errnos: number[] = []
  let failures = [4, 4]
  const call = (good: number) => () => {
    const errno = failures.shift()
    if (errno === undefined) return good
    errnos.push(errno)
    return -1
  }
  const libc: Libc = {
    socket: () => 3,
    bind: () => 0,
    setsockopt: () => 0,
    send: call(1),
    sendAside: () => Promise.resolve(call(1)()),
    recv: call(0),
    close: () => 0,
    errno: () => errnos.at(-1) ?? 0,
  }
  const socket = openSocket(0, {}, libc)
  socket.send(Buffer.alloc(1))
  t.equal(failures.length, 0, 'EINTR was retried')
  failures = [4, 105]
  t.equal(socket.receive().kind, 'overrun')
  failures = [11]
  t.equal(socket.receive().kind, 'nothing')
  failures = [1]
  t.throws(() => socket.receive(), { name: 'KernelError', kind: 'denied' })
  failures = [1]
  t.throws(() => openSocket(0, {}, { ...libc, bind: call(0) }), KernelError)
  failures = [105]
  await socket.sendAside(Buffer.alloc(1))
  t.equal(failures.length, 0, 'what another thread could not send is sent')
  failures = [105, 105]
  await t.rejects(socket.sendAside(Buffer.alloc(1)), /send 1 bytes to netlink/)
  socket.close()
  t.throws(() => socket.send(Buffer.alloc(1)), /closed/)
})
