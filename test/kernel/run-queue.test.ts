import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { waitedForProcessorMs } from '../../lib/kernel/run-queue.js'

t.test('the time of waiting for a processor is the second number, in ms', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'run-queue-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'schedstat')
  for (const [text, ms] of [
    ['7000000 2500000 12\n', 2.5],
    ['0 0 0\n', 0],
    ['', 0],
    ['nothing here\n', 0],
  ] as const) {
    writeFileSync(file, text)
    t.equal(waitedForProcessorMs(file), ms, JSON.stringify(text))
  }
  t.equal(waitedForProcessorMs(join(folder, 'missing')), 0)
  t.ok(waitedForProcessorMs() >= 0)
  t.end()
})
