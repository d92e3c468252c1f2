import t, { type Test } from 'tap'
import { simulatedPlayground } from '../../../lib/lab/simulation/cluster.js'
import type { LivePlayground } from '../../../lib/lab/playground/live-playground.js'
import type { PageView } from '../../../lib/page/readers.js'
import type { PodAction } from '../../../lib/page/page-command.js'
import { untilTrue } from '../../support/until.js'

const everything = { apiVersion: 'v1', kind: 'List', namespace: '', name: 'all' }

const until = (playground: LivePlayground, isThere: (view: PageView) => boolean) =>
  untilTrue(() => isThere(playground.view()), 20)

/** A simulated cluster whose three pods are ready. */
async function opened(t: Test): Promise<LivePlayground> {
  const stop = new AbortController()
  t.teardown(() => stop.abort())
  const playground = simulatedPlayground(stop.signal)
  await until(playground, ({ busy, pods }) => busy === '' && statesOf({ pods }).length === 3)
  return playground
}

/** Node and state of each pod that has settled, in order. */
function statesOf({ pods }: Pick<PageView, 'pods'>): readonly string[] {
  return pods
    .filter(({ state }) => state !== 'starting' && state !== 'terminating')
    .map(({ node, state }) => `${node} ${state}`)
    .sort()
}

function podsIn({ pods }: PageView, inNamespace: string) {
  return pods.filter(({ name }) => name.includes('/') === (inNamespace !== 'default'))
}

/** Makes a pod dark, as the lesson says. */
async function goDark(playground: LivePlayground, name: string): Promise<void> {
  const line = { apiVersion: 'v1', kind: 'Pod', namespace: 'default', name }
  const yaml = playground.yaml(line) ?? ''
  const annotations = 'annotations: { playground/process: dark }'
  const fresh = yaml.replace('metadata:\n', `metadata:\n  ${annotations}\n`)
  await playground.perform({ do: 'apply', yaml: fresh })
}

t.test('another cluster does to its pods what was done to these', async (t) => {
  const one = await opened(t)
  await one.perform({ do: 'replicas', count: 4 })
  await until(one, (view) => statesOf(view).length === 4)
  t.same(one.view().marks, [], 'nothing was done to a pod')
  const [first, second, third, fourth] = one.view().pods
  const act = async (name = '', ...actions: PodAction[]) => {
    for (const action of actions) await one.perform({ do: 'pod', pod: name, action })
  }
  await act(first?.name, 'unready')
  await act(fourth?.name, 'unready')
  await act(second?.name, 'unready', 'kill')
  await goDark(one, third?.name ?? '')
  await until(one, ({ pods }) => pods.some(({ state }) => state === 'stopped'))
  const { marks } = one.view()
  t.same(
    marks,
    [
      `default_web_${first?.node}_running_unready`,
      `default_web_${fourth?.node}_running_unready`,
      `default_web_${second?.node}_stopped_unready`,
      `default_web_${third?.node}_dark_ready`,
    ].sort(),
  )

  const other = await opened(t)
  await other.perform({ do: 'apply', yaml: one.yaml(everything) ?? '' })
  // The fourth pod comes some time later.
  await other.perform({ do: 'marks', marks })
  t.same(other.view().marks, marks)
  const wanted = statesOf(one.view()).join()
  await until(other, (view) => statesOf(view).join() === wanted)

  await act(first?.name, 'ready')
  t.equal(one.view().marks.length, 3, 'a pod that is as its template says has no mark')
})

t.test('a pod that was made ready against its template is so in another cluster', async (t) => {
  const one = await opened(t)
  await one.perform({ do: 'exercise', id: 'readiness' })
  await until(one, ({ pods }) => pods.every(({ state }) => state === 'not ready'))
  t.same(one.view().marks, [])
  const [first] = one.view().pods
  await one.perform({ do: 'pod', pod: first?.name ?? '', action: 'ready' })
  const { marks } = one.view()
  t.same(marks, [`default_web_${first?.node}_running_ready`])

  const other = await opened(t)
  await other.perform({ do: 'exercise', id: 'readiness' })
  await other.perform({ do: 'apply', yaml: one.yaml(everything) ?? '' })
  await other.perform({ do: 'marks', marks })
  // Pods that the exercise replaces are ready for some time.
  const wanted = statesOf(one.view()).join()
  await until(other, (view) => statesOf(view).join() === wanted)
})

t.test('marks of a hostile link change nothing, and none is too many', async (t) => {
  const playground = await opened(t)
  for (const text of [
    '',
    'default_web_node-1_dark',
    'default_web_node-1_burning_ready',
    'default_web_node-1_dark_ready_more',
    '../default_web_node-1_dark_ready',
    '__proto___web_node-1_dark_ready',
    '_'.repeat(100_000),
    `default_${'a'.repeat(100_000)}`,
  ]) {
    const both = ['default_web_node-1_dark_ready', text]
    await t.rejects(playground.perform({ do: 'marks', marks: both }), /so no pod is changed/)
  }
  const nobody = ['default_constructor_node-1_dark_ready', 'shop_web_node-1_dark_ready']
  await playground.perform({ do: 'marks', marks: nobody })
  t.same(playground.view().marks, [])
  const many = Array.from({ length: 10_000 }, () => 'default_web_nowhere_dark_ready')
  await playground.perform({ do: 'marks', marks: many })
  t.equal(playground.view().marks.length, 3, 'each pod takes one, on any node')
})

t.test('a request without a sender or an address is refused with the reason', async (t) => {
  const playground = await opened(t)
  const send = () => playground.perform({ do: 'send', count: 1 })
  await playground.perform({ do: 'sender', sender: 'backend' })
  await playground.perform({ do: 'replicas', count: 0 })
  await until(playground, ({ pods }) => pods.length === 0)
  await t.rejects(send(), /no pod can send it/)
  await playground.perform({ do: 'sender', sender: 'node' })
  await send()
  const spec = 'spec: { type: ExternalName, externalName: example.org }'
  const yaml = `apiVersion: v1\nkind: Service\nmetadata: { name: web }\n${spec}\n`
  await playground.perform({ do: 'apply', yaml })
  await t.rejects(send(), /there is no such Service or address/)
})

t.test('a link has what was written by hand, in the namespaces where it is', async (t) => {
  const one = await opened(t)
  const object = (apiVersion: string, kind: string, metadata: string, spec = '') =>
    `apiVersion: ${apiVersion}\nkind: ${kind}\nmetadata: { ${metadata} }\n${spec}`
  const pod = 'spec: { containers: [{ name: a, image: a, ports: [{ containerPort: 80 }] }] }\n'
  const template =
    'metadata: { labels: { app: web } }, spec: { containers: [{ name: a, image: a }] }'
  const deployment = `spec: { selector: { matchLabels: { app: web } }, template: { ${template} } }\n`
  const texts = [
    object('v1', 'Namespace', 'name: shop'),
    object('v1', 'Pod', 'name: alone, annotations: { playground/ready: "false" }', pod),
    object('apps/v1', 'Deployment', 'name: web, namespace: shop', deployment),
    object(
      'v1',
      'Service',
      'name: web, namespace: shop',
      'spec: { selector: { app: web }, ports: [{ port: 80 }] }\n',
    ),
  ]
  await one.perform({ do: 'apply', yaml: texts.join('---\n') })
  await until(one, (view) => statesOf(view).length === 5)
  const all = one.yaml(everything) ?? ''
  t.equal(all.match(/^kind: /gm)?.length, 7, 'two Services and a Deployment were there before')

  const other = await opened(t)
  await other.perform({ do: 'apply', yaml: all })
  await until(other, (view) => statesOf(view).length === 5)
  t.equal(other.yaml(everything), all)
  t.equal(other.view().pods.find(({ name }) => name === 'alone')?.state, 'not ready')
})

t.test('pods of another namespace have its name, and buttons that work', async (t) => {
  const playground = await opened(t)
  const template =
    'metadata: { labels: { app: web } }, spec: { containers: [{ name: a, image: a }] }'
  const spec = `{ selector: { matchLabels: { app: web } }, template: { ${template} } }`
  const yaml = [
    'apiVersion: v1\nkind: Namespace\nmetadata: { name: shop }\n',
    `apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: web, namespace: shop }\nspec: ${spec}\n`,
    'apiVersion: v1\nkind: Service\nmetadata: { name: web, namespace: shop }\nspec: { selector: { app: web }, ports: [{ port: 80 }] }\n',
  ].join('---\n')
  await playground.perform({ do: 'apply', yaml })
  const shop = () => podsIn(playground.view(), 'shop')[0]
  await until(playground, () => shop()?.state === 'ready')
  const name = shop()?.name ?? ''
  t.match(name, /^shop\/web-/)
  const plain = name.replace('shop/', '')

  await playground.perform({ do: 'select', service: 'shop/web' })
  await until(playground, ({ path, pending }) => path.ways.length === 1 && pending === '')
  t.equal(playground.view().path.ways[0]?.pod, name, 'the way leads to it')
  await playground.perform({ do: 'send', count: 1 })
  t.equal(playground.view().log[0]?.answer, name, 'it answers with this name')

  for (const [action, state] of [
    ['unready', 'not ready'],
    ['ready', 'ready'],
    ['kill', 'stopped'],
    ['revive', 'ready'],
  ] as const) {
    await playground.perform({ do: 'pod', pod: name, action })
    await until(playground, () => shop()?.state === state)
    t.match(playground.view().kubectl, `kubectl annotate pod ${plain} -n shop playground/`)
  }
  await playground.perform({ do: 'lesson', id: 'cluster-ip' })
  t.equal(shop()?.state, 'ready', 'a lesson begins, and leaves it')
  await playground.perform({ do: 'exercise', id: 'selector' })
  t.equal(shop()?.name, name, 'an exercise does, too')
  await playground.perform({ do: 'pod', pod: name, action: 'terminate' })
  t.equal(playground.view().kubectl, `kubectl delete pod ${plain} -n shop --wait=false`)
  await until(playground, (view) =>
    podsIn(view, 'shop').some((each) => each.name !== name && each.state === 'ready'),
  )
  await t.rejects(
    playground.perform({ do: 'pod', pod: 'shop/nobody', action: 'kill' }),
    /kill pod shop\/nobody: there is no such pod/,
  )
})

t.test('an SCTP Service is shown as such, and not asked over TCP', async (t) => {
  const playground = await opened(t)
  const spec = '{ selector: { app: web }, ports: [{ port: 90, targetPort: 8080, protocol: SCTP }] }'
  const yaml = `apiVersion: v1\nkind: Service\nmetadata: { name: signal }\nspec: ${spec}\n`
  await playground.perform({ do: 'apply', yaml })
  // Userspace mode has no SCTP.
  await playground.perform({ do: 'mode', mode: 'nftables' })
  await playground.perform({ do: 'select', service: 'default/signal' })
  await until(playground, ({ path, pending }) => path.ways.length === 3 && pending === '')
  t.equal(playground.view().service.protocol, 'SCTP')
  for (const command of [
    { do: 'send', count: 1 } as const,
    { do: 'continuous', on: true } as const,
  ]) {
    await t.rejects(playground.perform(command), /the Service is SCTP/)
  }
  t.equal(playground.view().asked, 0)
  t.notOk(playground.view().continuous)
})

t.test('what two pages begin at the same time begins one after the other', async (t) => {
  const playground = await opened(t)
  await Promise.all([
    playground.perform({ do: 'exercise', id: 'nobody' }),
    playground.perform({ do: 'lesson', id: 'cluster-ip' }),
    playground.perform({ do: 'exercise', id: 'selector' }),
  ])
  const begun = (lines: readonly { readonly id: string; readonly isActive: boolean }[]) =>
    lines.flatMap(({ id, isActive }) => (isActive ? [id] : []))
  const { lessons, exercises, pods } = playground.view()
  t.same([...begun(lessons), ...begun(exercises)], ['selector'])
  t.equal(pods.length, 3)
  await Promise.all([
    playground.perform({ do: 'lesson', id: 'cluster-ip' }),
    playground.perform({ do: 'exercise', id: 'nobody' }),
    playground.perform({ do: 'exercise', id: '' }),
  ])
  t.same(begun([...playground.view().lessons, ...playground.view().exercises]), [])
  t.equal(playground.view().replicas, 3, 'the scene of the exercise has ended with it')
})
