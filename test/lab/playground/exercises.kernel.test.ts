import t from 'tap'
import { exercises } from '../../../lib/lab/playground/exercises.js'
import { withPlayer, type Player } from './player.js'
import type { PageCommand } from '../../../lib/page/page-command.js'
import type { ObjectLine } from '../../../lib/page/view.js'
import { untilSeen } from '../../support/until.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'

const service = { apiVersion: 'v1', kind: 'Service', namespace: 'default', name: 'web' }
const slice = {
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  namespace: 'default',
  name: 'web-by-hand',
}

function edited(
  { playground }: Player,
  line: ObjectLine,
  from: string | RegExp,
  to: string,
): readonly PageCommand[] {
  return [{ do: 'apply', yaml: playground.yaml(line)?.replace(from, to) ?? '' }]
}

/** The solution of each exercise. exercises.browser.test.ts solves them with mouse and keyboard. */
const solutions: Readonly<Record<string, (player: Player) => readonly PageCommand[]>> = {
  nobody: () => [{ do: 'replicas', count: 1 }],
  selector: (player) => edited(player, service, 'app: wbe', 'app: web'),
  readiness: ({ playground }) =>
    playground.view().pods.map(({ name }) => ({ do: 'pod', pod: name, action: 'ready' })),
  'target-port': (player) => edited(player, service, 'targetPort: 8088', 'targetPort: 8080'),
  'client-port': (player) => edited(player, service, 'port: 8080\n', 'port: 80\n'),
  'internal-local': () => [{ do: 'policy', side: 'internal', value: 'Cluster' }],
  'external-local': () => [{ do: 'policy', side: 'external', value: 'Cluster' }],
  ranges: () => [{ do: 'ranges', ranges: ['192.168.50.0/24'] }],
  intruder: (player) => edited(player, service, /( +)app: web\n/, '$1app: web\n$1tier: front\n'),
  'by-hand': (player) =>
    edited(
      player,
      slice,
      /addresses:\n( +)- \S+/,
      `addresses:\n$1- ${player.playground.view().pods[0]?.ip ?? ''}`,
    ),
}

t.test(
  'real packets say that each exercise is broken, and when it is solved',
  { skip },
  async (t) => {
    await withPlayer('exercises', ['iptables', 'userspace'], async (player) => {
      const reportOf = () =>
        player.playground.view().exercises.find((each) => each.isActive)?.report
      const checked = async (wanted: RegExp) => {
        const report = () => player.do({ do: 'check' }).then(reportOf)
        await untilSeen('the report of the exercise', report, wanted)
      }
      for (const { id } of exercises) {
        await player.do({ do: 'exercise', id })
        await checked(/^Not yet/)
        t.match(reportOf(), /^Not yet: of 36 requests/, id)
        await player.do(...(solutions[id]?.(player) ?? []))
        await checked(/^Solved/)
        t.match(reportOf(), /^Solved: of 36 requests from .*, 36 were answered\.$/, id)
      }
    })
  },
)
