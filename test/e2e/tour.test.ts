import t from 'tap'
import { runTour } from '../../lib/lab/playground/tour.js'
import { skip } from './proxy-world.js'
import type { ModeName } from '../../lib/config/config.js'

t.test(
  'the tour shows how pods take turns and are replaced, in every mode of this kernel',
  { skip },
  async (t) => {
    const modes: readonly ModeName[] = ['userspace', 'iptables', 'nftables']
    const lines: string[] = []
    const isFine = await runTour(
      { modes, print: (line) => lines.push(line) },
      new AbortController().signal,
    )
    t.ok(isFine, lines.join('\n'))
    for (const mode of modes) t.ok(lines.includes(`-- kube-proxy --proxy-mode=${mode}`), mode)
    const rows = lines.filter((line) => /^ {6}web-/.test(line))
    t.ok(rows.length >= 6 * modes.length, lines.join('\n'))
    t.notOk(
      rows.some((row) => row.length > 80),
      'they fit a terminal',
    )
    const first = rows.slice(0, 3).flatMap((row) => row.trim().split(/ +/))
    t.equal(first.length, 6, 'six requests, in three rows')
    t.same(first.slice(2), first.slice(0, -2), 'strict turn-taking in the original design')
    t.equal(new Set(first).size, 2)
  },
)
