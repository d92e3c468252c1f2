/** The playground's tour in ipvs mode, in a kernel that has it. Prints TAP. */
import t from 'tap'
import { runTour } from '../../../lib/playground/tour.js'

await t.test('the tour answers in ipvs mode', async (t) => {
  const lines: string[] = []
  const print = (line: string) => lines.push(line)
  t.ok(await runTour({ modes: ['ipvs'], print }, new AbortController().signal), lines.join('\n'))
})
