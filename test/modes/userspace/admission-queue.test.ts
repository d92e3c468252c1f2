import { once } from 'node:events'
import { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { DescriptorBudget } from '../../../lib/modes/userspace/datapath/descriptors.js'
import { AdmissionQueue } from '../../../lib/modes/userspace/datapath/net/admission-queue.js'

t.test('seats are few, and free again when somebody leaves or is let in', async (t) => {
  const budget = new DescriptorBudget(DescriptorBudget.allocate(0, 1))
  let isOpen = false
  const admitted: Socket[] = []
  const room = new AdmissionQueue(budget, (client) => isOpen && admitted.push(client) > 0)
  const [a, b, c] = [new Socket(), new Socket(), new Socket()]
  t.ok(room.add(a))
  t.notOk(room.add(b), 'one seat')
  a.destroy()
  await once(a, 'close')
  t.notOk(room.hasClients)
  t.ok(room.add(b))
  isOpen = true
  while (admitted.length === 0) await sleep(10)
  t.same(admitted, [b])
  t.notOk(room.hasClients)
  isOpen = false
  t.ok(room.add(c))
  // Not `once`: these sockets were never connected, and resetting one is an error as well.
  const closed = new Promise((resolve) => c.once('close', resolve))
  room.empty()
  await closed
  t.notOk(room.hasClients)
})
