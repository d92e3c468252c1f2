import t from 'tap'
import { listAt, textAt } from '../../../lib/lab/apiserver/json.js'
import { conditionOf, isReady, type KubeObject } from '../../../lib/lab/apiserver/object.js'
import { noKubectl, startServer, type TestServer } from './support/kubectl.js'
import { untilTrue } from '../../support/until.js'

const hello = { apiVersion: 'apps/v1', kind: 'Deployment', name: 'hello' }
const pods = { apiVersion: 'v1', kind: 'Pod' }
const nodeOf = (pod: KubeObject) => textAt(pod, 'spec', 'nodeName')
const imageOf = (pod: KubeObject) => textAt(listAt(pod, 'spec', 'containers')[0], 'image')

/** Two nodes with room for nine pods. */
async function withNodes(act: (server: TestServer) => Promise<void>): Promise<void> {
  const server = await startServer()
  try {
    for (const [name, room] of [
      ['large', '6'],
      ['small', '3'],
    ] as const) {
      server.api.put({
        apiVersion: 'v1',
        kind: 'Node',
        metadata: { name },
        status: { allocatable: { pods: room } },
      })
    }
    await server.ok('create deployment hello --image=nginx --port=80')
    await act(server)
  } finally {
    await server.stop()
  }
}

async function untilPods(
  { api }: TestServer,
  isWanted: (all: readonly KubeObject[]) => boolean,
): Promise<readonly KubeObject[]> {
  await untilTrue(() => isWanted(api.list(pods)))
  return api.list(pods)
}

const ready = (count: number) => (all: readonly KubeObject[]) =>
  all.filter(isReady).length === count

void t.test('pods take all the room there is, and the others wait', { skip: noKubectl }, (t) =>
  withNodes(async (server) => {
    await server.ok('scale deployment hello --replicas=9')
    const all = await untilPods(server, ready(9))
    t.equal(all.filter((pod) => nodeOf(pod) === 'large').length, 6)
    t.equal(all.filter((pod) => nodeOf(pod) === 'small').length, 3)

    await server.ok('scale deployment hello --replicas=10')
    const [waits] = (await untilPods(server, (now) => now.length === 10)).filter(
      (pod) => !isReady(pod),
    )
    const why = /NoRoom .*large has room for 6 pods, small has room for 3 pods, and all is taken/
    const described = async () => server.ok(`describe pod ${waits?.metadata.name ?? ''}`)
    await untilTrue(async () => why.test(await described()))
    t.equal((await server.ok('get events')).match(/NoRoom/g)?.length, 1, 'it is said once')

    // A pod that goes makes room for one that waits, also if it belongs to another owner.
    await server.ok('scale deployment hello --replicas=9')
    await untilPods(server, (now) => now.length === 9)
    await server.ok('run alone --image=nginx')
    await untilPods(server, (now) => now.length === 10)
    await server.ok('scale deployment hello --replicas=8')
    await untilPods(server, (now) => now.length === 9 && ready(9)(now))
    t.match(await server.ok('get pod alone'), /alone +1\/1 +Running/)
  }),
)

void t.test('a rollout goes on where no room is left', { skip: noKubectl }, (t) =>
  withNodes(async (server) => {
    for (const [replicas, image] of [
      [8, 'nginx:2'],
      [9, 'nginx:3'],
    ] as const) {
      await server.ok(`scale deployment hello --replicas=${replicas}`)
      await untilPods(server, ready(replicas))
      let fewest = Infinity
      let isMissed = false
      const isAvailable = (deployment?: KubeObject) =>
        deployment && textAt(conditionOf(deployment, 'Available'), 'status') === 'True'
      await untilTrue(() => isAvailable(server.api.get(hello)) === true)
      const { store } = server.api.registry
      const stops = [
        store.subscribe('pods', () => {
          fewest = Math.min(fewest, server.api.list(pods).filter(isReady).length)
        }),
        store.subscribe('deployments.apps', ({ object }) => {
          isMissed ||= !isAvailable(object)
        }),
      ]
      await server.ok(`set image deployment/hello nginx=${image}`)
      await server.ok('rollout status deployment/hello --timeout=300s')
      for (const stop of stops) stop()
      t.ok(fewest >= replicas - 2, `at most a quarter is missing: ${fewest} of ${replicas}`)
      t.notOk(isMissed, 'and the Deployment stays available')
      const all = await untilPods(server, ready(replicas))
      t.same([...new Set(all.map(imageOf))], [image])
    }
  }),
)

void t.test('an undone rollout is the version of before', { skip: noKubectl }, (t) =>
  withNodes(async (server) => {
    const settled = () => server.ok('rollout status deployment/hello --timeout=300s')
    await server.ok('set image deployment/hello nginx=nginx:2')
    await server.ok('annotate deployment/hello kubernetes.io/change-cause=second')
    await settled()
    t.match(await server.ok('rollout history deployment/hello'), /\n1 +<none>\n2 +second\n/)
    const sets = async () => (await server.ok('get replicasets -o name')).trim().split('\n').sort()
    const before = await sets()
    await server.ok('rollout undo deployment/hello')
    await settled()
    t.same(await sets(), before, 'no other ReplicaSet')
    t.match(await server.ok('rollout history deployment/hello'), /\n2 +second\n3 /)
    t.notMatch(await server.ok('rollout history deployment/hello'), /\n1 /)
  }),
)
