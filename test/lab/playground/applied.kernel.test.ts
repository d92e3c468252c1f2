import t from 'tap'
import { ebpfHere, hasReady, readyPods, withPlayer, type Player } from './player.js'
import type { ModeName } from '../../../lib/config/config.js'
import type { PageView } from '../../../lib/page/readers.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'

/** The page draws what packets do, also in the moment after a change. */

const waysTo = ({ path }: PageView) => path.ways.map(({ pod }) => pod).filter((pod) => pod !== '')

/** Waits until the newest pod was reached, because the page's own connections end then. */
const timelineEnds = (player: Player) =>
  player.see('the end of the timeline', ({ timeline }) =>
    timeline ? timeline.note !== '' || timeline.steps.length === 7 : false,
  )

t.test('a way is drawn when connections can take it, and not before', { skip }, (t) =>
  withPlayer('applied', ['iptables', 'nftables'], async (player) => {
    for (const mode of ['iptables', 'nftables'] as const) {
      await player.do({ do: 'mode', mode }, { do: 'replicas', count: 3 })
      await player.see('three ways', (view) => hasReady(3)(view) && waysTo(view).length === 3)
      await player.do({ do: 'replicas', count: 5 })
      const view = await player.see('five ways', (each) => waysTo(each).length === 5)
      await player.do({ do: 'clear' }, { do: 'send', count: 100 })
      const answers = player.playground.view().answers.map(({ name }) => name)
      t.same(answers.sort(), [...readyPods(view)].sort(), `${mode}: all five answer at once`)
      await player.see('nothing on its way', ({ pending: left, pods }) => {
        return left === '' && pods.every(({ isPending }) => isPending !== true)
      })
    }
  }),
)

/**
 * The modes in order: ebpf comes first, because the kernel's table still has connections of others.
 */
const others = ['nftables', 'iptables', 'userspace'] as const
const counting = ebpfHere.length > 0 ? (['ebpf', ...others] as const) : others

const sumOf = ({ counters }: Pick<PageView, 'counters'>) =>
  Object.values(counters.endpoints).reduce((total, each) => total + each, 0)

t.test('counters show what was sent, without the connections of the page', { skip }, (t) =>
  withPlayer('hidden', counting, async (player) => {
    const countedIn = async (mode: ModeName, round: number) => {
      await player.do({ do: 'replicas', count: 3 }, { do: 'mode', mode })
      await player.see('three ways', (view) => hasReady(3)(view) && waysTo(view).length === 3)
      await player.do({ do: 'replicas', count: 4 })
      await player.see('four ways', (view) => waysTo(view).length === 4)
      await timelineEnds(player)
      if (mode === 'iptables') {
        const isRead = ({ counters }: PageView) => Object.keys(counters.endpoints).length === 4
        await player.see('the new rules are read', isRead)
      }
      await player.do({ do: 'clear' }, { do: 'send', count: 100 })
      const { counters } = await player.see(`${mode}: a hundred`, (view) => {
        const first = view.counters.rules[view.path.shared[0]?.counter ?? '']
        const isComplete = ['nftables', 'ebpf'].includes(mode) || first === 100 * round
        return view.asked === 100 && sumOf(view) >= 100 && isComplete
      })
      return sumOf({ counters })
    }
    for (const mode of counting) {
      let sum = await countedIn(mode, 1)
      // On a busy machine a connection of the page may meet rules that no log has told about yet.
      // The rules of endpoints are written anew in each round, and count from zero.
      for (let round = 2; mode === 'iptables' && sum !== 100 && round <= 5; round++) {
        sum = await countedIn(mode, round)
      }
      t.equal(sum, 100, mode)
    }
  }),
)
