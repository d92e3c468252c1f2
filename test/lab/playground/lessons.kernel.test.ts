import t from 'tap'
import { ebpfHere, hasReady, readyPods, withPlayer, type Player } from './player.js'
import type { PageView } from '../../../lib/page/readers.js'
import type { PodView } from '../../../lib/page/view.js'
import type { LessonView } from '../../../lib/page/learning-view.js'
import { endpointsInRules, type LessonFacts } from '../../../lib/lab/playground/lesson-checks.js'
import { lessons } from '../../../lib/lab/playground/lessons.js'
import { until } from '../../support/until.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'

/** The steps of a learner in each lesson. */
const solutions: Readonly<Record<string, (player: Player) => Promise<void>>> = {
  'cluster-ip': async (player) => {
    await untilDone(player, 1, () => player.send(100))
    const [first = ''] = readyPods(player.playground.view())
    await player.do({ do: 'pod', pod: first, action: 'terminate' })
    await untilDone(player, 2, () => player.send(100))
  },
  userspace: async (player) => {
    await mode(player, 'userspace')
    await player.see('three pods', hasReady(3))
    await untilDone(player, 3, () => player.send())
  },
  iptables: async (player) => {
    await mode(player, 'userspace')
    await untilDone(player, 1, () => player.send(100))
    await mode(player, 'iptables')
    await untilDone(player, 2, () => player.send(100))
    await untilDone(player, 3, () => player.send())
  },
  statistics: async (player) => {
    await mode(player, 'iptables')
    await player.see('three pods', hasReady(3))
    await untilDone(player, 1, () => player.send(100))
    await player.do({ do: 'replicas', count: 2 })
    await player.see('two pods', hasReady(2))
    await untilDone(player, 2, () => player.send(100))
  },
  ipvs: async (player) => {
    await player.do({ do: 'rules', mode: 'ipvs' }, { do: 'scheduler', scheduler: 'sh' })
    if (!player.playground.view().modes.includes('ipvs')) return
    await mode(player, 'ipvs')
    for (let count = 0; count < 6; count++) await player.send()
  },
  nftables: async (player) => {
    await mode(player, 'nftables')
    await player.do({ do: 'replicas', count: 5 })
    await player.see('five pods', hasReady(5))
    await untilDone(player, 2, () => Promise.resolve())
    await untilDone(player, 3, () => player.send(100))
  },
  ebpf: async (player) => {
    await player.do({ do: 'rules', mode: 'nftables' })
    await untilDone(player, 1, () => Promise.resolve())
    await player.do({ do: 'rules', mode: 'ebpf' }, { do: 'replicas', count: 5 })
    await player.see('five pods', hasReady(5))
    await untilDone(player, 3, () => Promise.resolve())
    if (ebpfHere.length > 0) {
      await mode(player, 'ebpf')
      await untilDone(player, 4, () => player.send())
    }
    await player.do({ do: 'replicas', count: 2 }, { do: 'rules', mode: 'nftables' })
    await player.see('two pods', hasReady(2))
  },
  outside: async (player) => {
    await player.do({ do: 'sender', sender: 'outside' }, { do: 'target', target: 'NodePort' })
    await untilDone(player, 1, () => player.send())
    await player.do({ do: 'policy', side: 'external', value: 'Local' })
    await untilDone(player, 2, () => player.send())
    await player.do({ do: 'type', type: 'LoadBalancer' })
    await player.do({ do: 'ranges', ranges: ['10.0.0.0/8'] })
    await player.see('an address', ({ service }) => service.loadBalancerIp !== '')
    await player.do({ do: 'target', target: 'LoadBalancer' })
    await untilDone(player, 3, () => player.send())
    await player.do({ do: 'ranges', ranges: ['192.168.50.0/24'] })
    await untilDone(player, 4, () => player.send())
    await player.do({ do: 'sender', sender: 'client-pod' }, { do: 'target', target: 'ClusterIP' })
  },
  trouble: async (player) => {
    await player.do({ do: 'replicas', count: 0 })
    await player.see('no pods', hasReady(0))
    await untilDone(player, 1, () => player.send())
    await player.do({ do: 'replicas', count: 1 }, { do: 'sender', sender: 'backend' })
    await player.see('one pod', hasReady(1))
    await untilDone(player, 2, () => player.send())
    await player.do({ do: 'sender', sender: 'client-pod' }, { do: 'replicas', count: 2 })
    await player.do({ do: 'select', service: 'default/echo' })
    await player.see('two pods', hasReady(2))
    let answered: string | undefined
    await untilDone(player, 2, () => Promise.resolve())
    while (!readyPods(player.playground.view()).includes(answered ?? '')) {
      answered = (await player.send())[0]?.answer
    }
    await player.do({ do: 'pod', pod: answered ?? '', action: 'terminate' })
    await untilDone(player, 3, () => player.send())
  },
  dark: async (player) => {
    await player.do({ do: 'select', service: 'default/web' }, { do: 'target', target: 'ClusterIP' })
    await player.do({ do: 'replicas', count: 3 }, { do: 'sender', sender: 'client-pod' })
    await mode(player, 'nftables')
    const { pods } = await player.see('three pods', hasReady(3))
    annotate(player, 'Pod', pods[0]?.name, { 'playground/process': 'dark' })
    await untilDone(player, 1, () => player.send())
    await mode(player, 'userspace')
    await untilDone(player, 2, () => player.send())
    await mode(player, 'nftables')
    annotate(player, 'Service', 'web', {
      'kube-proxy-ts/health-check': 'tcp',
      'kube-proxy-ts/health-check-interval': '1s',
    })
    await untilDone(player, 3, () => player.send())
    const stateOf = ({ pods: shown }: Pick<PageView, 'pods'>) =>
      shown.find(({ name }) => name === pods[0]?.name)?.state
    const { path } = await player.see('it fails', (view) => stateOf(view) === 'failing')
    t.equal(path.ways.length, 2, 'nobody is sent there')
    annotate(player, 'Pod', pods[0]?.name, { 'playground/process': 'on' })
    await player.see(
      'it is back',
      (view) => stateOf(view) === 'ready' && view.path.ways.length === 3,
    )
  },
}

function mode(player: Player, name: string): Promise<void> {
  return player.do({ do: 'mode', mode: name })
}

/** Annotates an object as `kubectl annotate` does. */
function annotate(
  { cluster }: Player,
  kind: 'Pod' | 'Service',
  name = '',
  annotations: Readonly<Record<string, string>>,
): void {
  const { api } = cluster
  const object = api.get({ apiVersion: 'v1', kind, name, namespace: 'default' })
  if (!object) throw new Error(`no ${kind} ${name}`)
  const { metadata } = object
  const all = { ...metadata.annotations, ...annotations }
  api.put({ ...object, metadata: { ...metadata, annotations: all } })
}

function active(player: Player): LessonView | undefined {
  return player.playground.view().lessons.find(({ isActive }) => isActive)
}

/** Repeats an act until so many tasks of the lesson are done. */
async function untilDone(
  player: Player,
  count: number,
  act: () => Promise<unknown>,
): Promise<void> {
  const isEnough = async () => {
    const done = active(player)?.tasks.filter(({ isDone }) => isDone).length ?? 0
    if (done >= count) return true
    await act()
    return false
  }
  await until(() => `${active(player)?.title}: ${count} tasks`, isEnough, 100)
}

t.test('every lesson sees that a task is done, and not before', { skip }, async (t) => {
  await withPlayer(
    'lessons',
    ['iptables', 'nftables', 'userspace', ...ebpfHere],
    async (player) => {
      await player.see('three pods', hasReady(3))
      for (const { id } of lessons) {
        await player.do({ do: 'lesson', id })
        const fresh = active(player)
        t.equal(fresh?.id, id)
        t.notOk(fresh?.isDone, `${id}: not done before anything was done`)
        await solutions[id]?.(player)
        const result = player.playground.view().lessons.find((lesson) => lesson.id === id)
        t.ok(result?.isDone, `${id}: ${JSON.stringify(result?.tasks.map(({ isDone }) => isDone))}`)
      }
      await player.do({ do: 'lesson', id: '' })
      t.equal(active(player), undefined, 'the list of lessons is back')
      t.equal(player.playground.view().lessons.filter(({ isDone }) => isDone).length, 10)
      await t.rejects(player.do({ do: 'lesson', id: 'none' }), /there is no such lesson/)
    },
  )
})

t.test('of two silent pods the page says which one a request was sent to', { skip }, async (t) => {
  const modes = ['nftables', 'iptables', ...ebpfHere] as const
  await withPlayer('silent', [...modes, 'userspace'], async (player) => {
    const { pods } = await player.see('three pods', hasReady(3))
    const [alive, ...silent] = pods.map(({ name }) => name).toSorted()
    for (const name of silent) annotate(player, 'Pod', name, { 'playground/process': 'dark' })
    const isDark = ({ name, ip }: PodView) =>
      name === alive || !player.cluster.pods.serves(ip, 8080)
    await player.see('two are dark', (view) => view.pods.every(isDark))
    for (const name of modes) {
      if (player.playground.view().mode !== name) await mode(player, name)
      const told = new Set<string>()
      for (let tries = 0; tries < 40 && told.size < silent.length; tries++) {
        await player.send()
        const [latest] = player.playground.view().log
        if (latest?.isAnswered) t.equal(latest.answer, alive, `${name}: others are silent`)
        else told.add(String(latest?.sentTo))
      }
      t.same([...told].toSorted(), silent, name)
    }
  })
})

t.test('the lesson of nftables finds endpoints in a shared map', { skip }, async (t) => {
  await withPlayer('lesson-map', ['nftables', 'iptables'], async (player) => {
    await player.do({ do: 'lesson', id: 'nftables' }, { do: 'type', type: 'ClusterIP' })
    await solutions['nftables']?.(player)
    t.match(active(player)?.tasks, [{ isDone: true }, { isDone: true }, { isDone: true }])
    await player.see('elements', ({ rules }) =>
      rules.lines.some(({ text }) => text.includes('element ip kube-proxy tcp-endpoints {')),
    )
  })
})

t.test('the lesson of nftables counts endpoints in rules and in maps', (t) => {
  const pods = [1, 2].map((number) => ({ state: 'ready', name: `web-${number}` }))
  const isDone = (rule: string, count = 2) =>
    endpointsInRules(count)({
      pods,
      rulesMode: 'nftables',
      rules: [rule],
    } as unknown as LessonFacts)
  const elements = (...ips: string[]) =>
    ips.map((ip, index) => `10.96.0.10 . 80 . ${index} : ${ip} . 8080`).join(', ')
  const map = 'add element ip kube-proxy tcp-endpoints'
  t.ok(isDone(`${map} { ${elements('10.1.0.1', '10.1.0.2', '10.1.0.1', '10.1.0.2')} }`))
  t.notOk(isDone(`${map} { ${elements('10.1.0.1', '10.1.0.1')} }`))
  t.notOk(isDone(`${map} { ${elements('10.1.0.1', '10.1.0.2', '10.1.0.3')} }`))
  t.ok(isDone('… dnat ip to numgen random mod 2 map { 0 : 10.1.0.1 . 80, 1 : 10.1.0.2 . 80 }'))
  t.ok(
    isDone('… numgen random mod 2 vmap { 0 : goto endpoint-a, 1 : goto endpoint-b }'),
    'affinity',
  )
  t.notOk(isDone('… dnat ip to ip daddr . tcp dport . numgen random mod 4 map @tcp-endpoints'))
  t.notOk(isDone(`${map} { ${elements('10.1.0.1')} }`, 1), 'as many pods are ready')
  t.end()
})
