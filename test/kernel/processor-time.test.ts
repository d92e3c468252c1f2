import t from 'tap'
import { runCommand } from '../../lib/kernel/command.js'
import { openProcessorClock } from '../../lib/kernel/this-process.js'

const processorMs = await openProcessorClock()
const skip = processorMs() === undefined && 'this kernel does not say'

t.test('work counts, here and in programs; waiting does not', { skip }, async (t) => {
  const used = (since: number | undefined) => (processorMs() ?? NaN) - (since ?? NaN)
  let before = processorMs()
  while (used(before) < 50) Math.random()
  t.pass('work of this thread')

  before = processorMs()
  await new Promise((resolve) => setTimeout(resolve, 300))
  t.ok(used(before) < 300, `${used(before)} ms in a wait of 300`)

  before = processorMs()
  const loop =
    'const end = process.cpuUsage().user + 200_000; while (process.cpuUsage().user < end);'
  await runCommand(process.execPath, ['-e', loop])
  t.ok(used(before) >= 200, `${used(before)} ms, most of them of a program`)
})

t.test('the clock tells what Node tells of a process with one busy thread', { skip }, (t) => {
  const [clock, node] = [processorMs() ?? NaN, process.cpuUsage()]
  while ((processorMs() ?? NaN) < clock + 200) Math.random()
  const { user, system } = process.cpuUsage(node)
  // The other threads of Node count there as well.
  t.ok((user + system) / 1000 >= 190, `${(user + system) / 1000} ms in 200 of the clock`)
  t.end()
})
