/** The tour and the page of the playground in ipvs mode, in a kernel with IPVS. Prints TAP. */
import t from 'tap'
import { get } from 'node:http'
import { PageServer } from '../../../lib/page/server.js'
import { hasReady, withPlayer } from '../../lab/playground/player.js'
import { runTour } from '../../../lib/lab/playground/tour.js'
import type { PageCommand } from '../../../lib/page/page-command.js'
import type { View } from '../../../lib/page/view.js'
import { until } from '../../support/until.js'

await t.test('the tour answers in ipvs mode', async (t) => {
  const lines: string[] = []
  const print = (line: string) => lines.push(line)
  t.ok(await runTour({ modes: ['ipvs'], print }, new AbortController().signal), lines.join('\n'))
})

/** Opens the page as a browser does: views come in by events, and commands go out. */
async function openPage(url: string) {
  let view = {} as View
  const events = get(`${url}/events`, (response) => {
    let pending = ''
    response.setEncoding('utf8').on('data', (chunk: string) => {
      pending += chunk
      for (let end = pending.indexOf('\n\n'); end >= 0; end = pending.indexOf('\n\n')) {
        view = { ...view, ...(JSON.parse(pending.slice('data: '.length, end)) as View) }
        pending = pending.slice(end + 2)
      }
    })
  })
  events.on('error', () => undefined)
  return {
    command: async (command: PageCommand) => {
      const headers = { 'content-type': 'application/json' }
      const body = JSON.stringify(command)
      const response = await fetch(`${url}/command`, { method: 'POST', headers, body })
      if (!response.ok) throw new Error(`${body}: ${response.status} ${await response.text()}`)
    },
    see: async (what: string, condition: (view: View) => boolean): Promise<View> => {
      const told = () => `${what}\n${JSON.stringify(view, undefined, 1)}`
      await until(told, () => condition(view))
      return view
    },
    close: () => events.destroy(),
  }
}

await t.test('the page in ipvs mode shows way, counters, schedulers and the lesson', (t) =>
  withPlayer('ipvs-page', ['iptables', 'ipvs'], async ({ playground }) => {
    const server = await PageServer.listen(playground, 0)
    const { command, see, close } = await openPage(server.url)
    try {
      await see('three pods', (view) => view.busy === '' && hasReady(3)(view))
      await command({ do: 'lesson', id: 'ipvs' })
      /** What a busy kernel answers after more than a second counts as dropped, so all go again. */
      const sent = async (count: 1 | 100, times = 1, triesLeft = 10): Promise<View> => {
        await command({ do: 'clear' })
        for (let number = 0; number < times; number++) await command({ do: 'send', count })
        const view = await see('all requests', ({ asked }) => asked === count * times)
        const isWhole = view.answers.every(({ name }) => !name.startsWith('dropped'))
        return isWhole || triesLeft === 0 ? view : sent(count, times, triesLeft - 1)
      }
      const lesson = ({ lessons }: View) => lessons.find(({ isActive }) => isActive)
      const done = (view: View) => lesson(view)?.tasks.filter(({ isDone }) => isDone).length ?? 0
      const begun = await see('the lesson', (view) => lesson(view)?.id === 'ipvs')
      t.equal(lesson(begun)?.tasks.length, 3, 'its third task is there where the kernel has ipvs')
      t.equal(lesson(begun)?.missing, '')
      await command({ do: 'rules', mode: 'ipvs' })
      await command({ do: 'scheduler', scheduler: 'sh' })
      await see('two tasks done by reading', (view) => done(view) === 2)

      await command({ do: 'mode', mode: 'ipvs' })
      const running = await see('ipvs', ({ mode, busy }) => mode === 'ipvs' && busy === '')
      const hops = running.path.shared.map(({ where, why }) => `${where} ${why}`).join('\n')
      t.match(
        hops + JSON.stringify(running.path.ways),
        /virtual server/i,
        'the way leads through it',
      )
      t.equal(running.path.ways.length, 3, 'to every pod')
      const hashed = await sent(1, 6)
      t.equal(hashed.answers.length, 1, 'source hashing: one pod got them all')
      t.ok(
        hashed.log.every(({ isSourceKept }) => isSourceKept),
        'and saw who asked',
      )
      await see('the whole lesson', (view) => done(view) === 3)
      const sum = ({ counters }: View) =>
        Object.values(counters.endpoints).reduce((total, count) => total + count, 0)
      const counted = await see('counters of IPVS', (view) => sum(view) >= 6)
      t.match(counted.counters.note, /as IPVS counts them/)

      await command({ do: 'scheduler', scheduler: 'rr' })
      await see('ipvs again', ({ scheduler, busy }) => scheduler === 'rr' && busy === '')
      const shares = await sent(100)
      const counts = shares.answers.map(({ count }) => count).sort()
      t.same(counts, [33, 33, 34], 'round robin: exactly in turn')
      await command({ do: 'policy', side: 'internal', value: 'Local' })
      await see('two ways', ({ path }) => path.ways.length === 2)
      const here = shares.pods.filter(({ node }) => node === 'node-1').map(({ name }) => name)
      const local = async (): Promise<readonly string[]> => {
        const view = await sent(100)
        return view.answers.map(({ name }) => name).sort()
      }
      let names: readonly string[] = []
      const isLocal = async () => (names = await local()).length === here.length
      await until(() => `answers of this node only: ${names.join()}`, isLocal)
      t.same(names, [...here].sort(), 'policy Local: the pods of this node answer')
    } finally {
      close()
      await server.close()
    }
  }),
)
