import t from 'tap'
import { buildOnLoopback } from '../../lib/lab/playground/loopback-test-bed.js'
import { runTour } from '../../lib/lab/playground/tour.js'
import { skip } from './proxy-world.js'
import type { ModeName } from '../../lib/config/config.js'
import type { TestBed } from '../../lib/lab/playground/test-bed.js'

/** The tour of userspace mode on 127.0.0.0/8, whose requests a test can change; what it printed. */
async function tourOnLoopback(
  change: (flow: TestBed['flow'], lines: readonly string[]) => TestBed['flow'],
  signal: AbortSignal,
): Promise<{ readonly isFine: boolean; readonly lines: readonly string[] }> {
  const lines: string[] = []
  const buildTestBed = async () => {
    const testBed = await buildOnLoopback()
    return { ...testBed, flow: change((place, request) => testBed.flow(place, request), lines) }
  }
  const print = (line: string) => lines.push(line)
  return { isFine: await runTour({ modes: ['userspace'], buildTestBed, print }, signal), lines }
}

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

t.test('a tour that is stopped waits for no answer, and blames nobody', async (t) => {
  for (const last of [/^-- kube-proxy --proxy-mode=userspace$/, /kubectl delete pod/]) {
    const stop = new AbortController()
    const { isFine, lines } = await tourOnLoopback(
      (flow, lines) => (place, request) => {
        if (!last.test(lines.at(-1) ?? '')) return flow(place, request)
        stop.abort()
        return new Promise(() => undefined)
      },
      stop.signal,
    )
    t.notOk(isFine, 'not everything was shown')
    t.match(lines.at(-1), last, 'nothing is printed after it')
  }
})

t.test(
  'a tour whose first requests reach one pod lists more, and says no other number',
  async (t) => {
    const answers: (string | undefined)[] = []
    const { isFine, lines } = await tourOnLoopback(
      (flow) => async (place, request) => {
        let results = await flow(place, request)
        // Others ask for several at a time.
        if (request.count !== 1) return results
        while (answers.length < 6 && answers.some((name) => name !== results[0]?.backend)) {
          results = await flow(place, request)
        }
        answers.push(results[0]?.backend)
        return results
      },
      new AbortController().signal,
    )
    t.ok(isFine, lines.join('\n'))
    const [start, end] = [/answered by$/, /kubectl delete pod/].map((text) =>
      lines.findIndex((line) => text.test(line)),
    )
    const listed = lines.slice((start ?? 0) + 1, end).flatMap((row) => row.trim().split(/ +/))
    t.same(listed, answers.slice(0, 12), 'twelve requests were needed, and are shown')
    t.match(lines[start ?? 0], /^ {3}Requests from a pod to/)
  },
)
