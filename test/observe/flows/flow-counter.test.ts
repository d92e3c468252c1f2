import t from 'tap'
import { FlowMessage } from '../../../lib/kernel/flow-message.js'
import { FlowCounter } from '../../../lib/observe/flows/flow-counter.js'

/** A new flow of UDP from 127.0.0.1:34115 to 10.96.1.0:53, as a kernel told of it. */
const bytes = Buffer.from(
  '020000003400018014000180080001007f000001080002000a6001001c0002800500010011000000060002008543000006000300003500003400028014000180080001000af40101080002007f0000011c0002800500010011000000060002001f400000060003008543000008000c00aa3fd67808000300000001a808000700000000010c001b0018ea84b39457f561',
  'hex',
)

function flow(): FlowMessage {
  const message = new FlowMessage()
  if (!message.read(bytes, 0, bytes.length)) throw new Error('the message is not read')
  return message
}

function begin(now: () => number) {
  const sampler = { admits: () => false }
  const counter = new FlowCounter({ now, sampler, line: () => undefined, maxEndpoints: 10 })
  const port = { id: 'IPv4 dns', family: 'IPv4', service: 'default/dns', protocol: 'UDP' } as const
  counter.change({
    set: [{ ...port, port: 53, addresses: ['10.96.1.0'], nodePort: 0 }],
    ...{ removed: [], localAddresses: [] },
  })
  const opened = () => counter.take().grown.reduce((sum, each) => sum + each.opened, 0)
  return { counter, opened }
}

/** The table is being read; the message is about a connection that began before. */
function beginListing() {
  const now = 1_000_000
  const begun = begin(() => now)
  begun.counter.missed(now - 1000)
  begun.counter.beginListing()
  const message = flow()
  message.startedAt = now - 500
  return { ...begun, message }
}

t.test('the kernel gives the id of a connection that has ended to a later one', (t) => {
  const { counter, opened, message } = beginListing()
  counter.listed(message)
  counter.endListing()
  counter.opened(flow())
  t.equal(opened(), 1, 'listed, and told a moment later')
  counter.ended(flow())
  counter.opened(flow())
  t.equal(opened(), 1, 'another one')
  t.end()
})

t.test('what ends while the table is read is not counted by it once more', (t) => {
  const { counter, opened, message } = beginListing()
  counter.opened(message)
  counter.ended(message)
  counter.listed(message)
  counter.endListing()
  t.equal(opened(), 1)
  t.end()
})
