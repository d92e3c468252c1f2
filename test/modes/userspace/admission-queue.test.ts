import { once } from 'node:events'
import { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { AdmissionQueue } from '../../../lib/modes/userspace/datapath/net/admission-queue.js'

t.test('a place in the queue is free again when its client leaves or is admitted', async (t) => {
  const budget = new DescriptorBudget(DescriptorBudget.allocate(0, 1))
  let isOpen = false
  const admitted: Socket[] = []
  const queue = new AdmissionQueue(budget, (client) => isOpen && admitted.push(client) > 0)
  const [a, b, c] = [new Socket(), new Socket(), new Socket()]
  t.ok(queue.add(a))
  t.notOk(queue.add(b), 'there is one place')
  a.destroy()
  await once(a, 'close')
  t.notOk(queue.hasClients)
  t.ok(queue.add(b))
  isOpen = true
  while (admitted.length === 0) await sleep(10)
  t.same(admitted, [b])
  t.notOk(queue.hasClients)
  isOpen = false
  t.ok(queue.add(c))
  // `once` would fail: these sockets were never connected, so that a reset is also an error.
  const closed = new Promise((resolve) => c.once('close', resolve))
  queue.empty()
  await closed
  t.notOk(queue.hasClients)
})
