import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { runCommand } from '../../lib/kernel/command.js'
import { processorClock } from '../../lib/kernel/this-process.js'

/**
 * A line of the kernel. The name may be any text; programs that have ended took 30 and 20 ticks.
 */
const stat = '7 (a ) b) S 1 7 7 0 -1 4194304 900 800 0 0 500 400 30 20 20 0 1 0 99\n'

t.test('the first thread in ns and the programs that have ended in ticks', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'processor-time-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const processorMs = processorClock(folder)
  for (const [schedstat, of, ms] of [
    ['7000000 2500000 12\n', stat, 507],
    ['0 0 0\n', stat, 500],
    ['', stat, undefined],
    ['nothing here\n', stat, undefined],
    ['7000000 2500000 12\n', '7 (a) S 1\n', undefined],
  ] as const) {
    writeFileSync(join(folder, 'schedstat'), schedstat)
    writeFileSync(join(folder, 'stat'), of)
    t.equal(processorMs(), ms, JSON.stringify([schedstat, of]))
  }
  t.equal(processorClock(join(folder, 'missing'))(), undefined)
  t.end()
})

const processorMs = processorClock()
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
