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
    t.ok(rows.length >= 2 * modes.length, lines.join('\n'))
    const first = rows[0]?.trim().split(/ +/) ?? []
    t.same(first.slice(2), first.slice(0, -2), 'strict turn-taking in the original design')
    t.equal(new Set(first).size, 2)
  },
)
