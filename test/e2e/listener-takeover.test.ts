import t from 'tap'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { RunningProxy } from '../../lib/lab/playground/proxy-process.js'
import { runProxy } from '../support/program.js'
import { addressOf, type Place } from '../../lib/lab/world/topology.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import { oneProxyWorld, patient, skip, stopping, write } from './proxy-world.js'
import type { World } from '../../lib/lab/world/world.js'
import { until } from '../support/until.js'

/** A new process takes over the listeners of userspace mode while clients connect all the time. */

const inWorld = oneProxyWorld(t, 'takeover')

const clusterIps = ['10.96.0.10', 'fd00:10:96::10'] as const
const nodePort = 30_080
const protocols = ['TCP', 'UDP'] as const
const families = ['IPv4', 'IPv6'] as const

const service = rawService({
  spec: {
    type: 'NodePort',
    clusterIP: clusterIps[0],
    clusterIPs: clusterIps,
    ipFamilies: families,
    ipFamilyPolicy: 'RequireDualStack',
    ports: protocols.map((protocol) => ({
      ...{ name: protocol.toLowerCase(), protocol, port: 80, targetPort: 8080 },
      nodePort,
    })),
  },
})
const slices = families.map((family) =>
  rawSlice({
    name: `web-${family.toLowerCase()}`,
    addressType: family,
    ports: protocols.map((protocol) => ({ name: protocol.toLowerCase(), protocol, port: 8080 })),
    endpoints: (['pod-1', 'pod-2'] as const).map((place) =>
      endpoint(addressOf(place, family), { node: 'node-1' }),
    ),
  }),
)

type Destination = readonly [from: Place, protocol: 'TCP' | 'UDP', host: string, port: number]

const destinations: readonly Destination[] = protocols.flatMap((protocol) =>
  families.flatMap((family, index): Destination[] => [
    ['client-pod', protocol, clusterIps[index === 0 ? 0 : 1], 80],
    ['outside', protocol, addressOf('node', family), nodePort],
    ['node', protocol, clusterIps[index === 0 ? 0 : 1], 80],
  ]),
)

/**
 * Asks all the time until it is stopped, and returns the number of each outcome. Without the pause
 * the clients would take the processors from the processes that they wait for.
 */
async function hammer(world: World, destination: Destination, isOver: () => boolean) {
  const [from, protocol, host, port] = destination
  const outcomes = new Map<string, number>()
  while (!isOver()) {
    const results = await world.agent(from).flow({ protocol, host, port, timeoutMs: patient })
    for (const { outcome, error = '' } of results) {
      const what = outcome === 'reply' ? 'reply' : `${outcome} ${error}`
      outcomes.set(what, (outcomes.get(what) ?? 0) + 1)
    }
    await delay(25)
  }
  return outcomes
}

const inFolder = (folder: string, manifests = folder): readonly string[] => [
  ...['--proxy-mode', 'userspace', '--manifests', manifests, '--takeover-folder', folder],
]

const hasPlace = async (folder: string) =>
  (await readdir(folder)).some((name) => name.includes('.sock'))

/** Runs a proxy that can be asked for its listeners, and `act` beside it. */
async function besideProxy(
  world: World,
  folder: string,
  flags: readonly string[],
  act: (proxy: RunningProxy) => Promise<void>,
): Promise<void> {
  const proxy = runProxy(world, flags)
  await stopping(proxy, async () => {
    await until('a place to ask', () => hasPlace(folder))
    await act(proxy)
  })
}

/** Whether a port is that of metrics or health. */
const isOwn = (port: number) => port === 10_249 || port === 10_256

/** Ports of listening TCP sockets and of all UDP sockets of the node. */
async function listeningOn(world: World): Promise<readonly number[]> {
  const files = ['tcp', 'tcp6', 'udp', 'udp6'].map((name) => `/proc/net/${name}`)
  const { stdout } = await world.exec('node', ['cat', ...files])
  const sockets = stdout.matchAll(/^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F:]+ (?:0A|07) /gm)
  return [...sockets].map(([, port = '']) => parseInt(port, 16))
}

const proxyPorts = async (world: World) =>
  (await world.exec('node', ['iptables-save', '-t', 'nat'])).stdout.match(/--to\S* \S+/g)?.sort()

/** Each process takes over from the one before, so that either data path follows either. */
const dataPaths = ['splice', 'splice', 'net', 'net', 'splice'] as const

t.test('--takeover refuses no client, whichever data path follows which', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, ...slices)
    const start = (dataPath: string, ...more: string[]): RunningProxy =>
      runProxy(world, [
        ...[...inFolder(folder), '--userspace-datapath', dataPath],
        ...['--drain-timeout', '10m', '--flows', '-v', '2', ...more],
      ])
    const [begun, ...followers] = dataPaths
    let before: string = begun
    let first = start(begun)
    let isOver = false
    try {
      await until('the first answer', async () => {
        const flow = { protocol: 'TCP', host: clusterIps[1], port: 80 } as const
        const [result] = await world.agent('client-pod').flow({ ...flow, timeoutMs: 300 })
        return result?.outcome === 'reply'
      })
      for (const after of followers) {
        const way = `${before} to ${after}`
        const ports = await proxyPorts(world)
        const kept = { protocol: 'TCP', host: clusterIps[0], port: 80, timeoutMs: patient } as const
        await world.agent('client-pod').flow({ ...kept, keepAs: 'long' })
        isOver = false
        const clients = destinations.map((one) => hammer(world, one, () => isOver))
        // If the test fails first, its error is reported, and not the errors of these clients.
        void Promise.allSettled(clients)
        const old = first
        first = start(after, '--takeover')
        before = after
        try {
          await until('the old one leaves', () => /taken the listeners over/.test(old.output()))
          t.match(first.output(), /took listeners over/, way)
          await delay(1000)
          isOver = true
          for (const [index, client] of clients.entries()) {
            const outcomes = await client
            t.same([...outcomes.keys()], ['reply'], `${way}: ${destinations[index]?.join(' ')}`)
          }
          t.same(await proxyPorts(world), ports, 'the same ports, and no rule was missed')
          t.ok(old.isRunning(), 'it stays for its connection')
          const late = await world.agent('client-pod').send('long', patient)
          t.equal(late.outcome, 'reply', 'which goes on')
          await world.agent('client-pod').forget('long')
          await until('the old one ends', () => !old.isRunning())
          t.equal(old.exitCode(), 0)
          t.notMatch(old.output(), /"level":"error"|EPERM/, 'nothing went wrong')
        } catch (error) {
          throw new Error(`${way}: ${String(error)}\n${old.output()}`, { cause: error })
        } finally {
          await old.stop()
        }
      }
      t.notMatch(first.output(), /"level":"error"|EPERM/, 'nothing went wrong')
    } finally {
      isOver = true
      await first.stop()
    }
  }),
)

t.test('if two processes take over at once, one succeeds and one ends', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, ...slices)
    const answer = async () => {
      const flow = { protocol: 'TCP', host: clusterIps[0], port: 80, timeoutMs: patient } as const
      return (await world.agent('client-pod').flow(flow))[0]?.outcome
    }
    const successor = () => runProxy(world, [...inFolder(folder), '--takeover'])
    await besideProxy(world, folder, inFolder(folder), async (first) => {
      const thief = world.spawn('node', [
        process.execPath,
        new URL('./listener-thief.js', import.meta.url).pathname,
        folder,
      ])
      await once(thief.stdout, 'data')
      const late = successor()
      await stopping(late, () => until('the late one ends', () => !late.isRunning()))
      t.equal(late.exitCode(), 1)
      t.match(late.output(), /another process starts or takes over now .*; start it again/)
      thief.kill('SIGKILL')
      t.equal(await answer(), 'reply', 'the first takes everything back')

      const heirs = [successor(), successor()]
      const family = [first, ...heirs]
      try {
        await until('one is left', () => family.filter((each) => each.isRunning()).length === 1)
        t.notOk(first.isRunning())
        t.equal(first.exitCode(), 0)
        await until('it may be asked', () => hasPlace(folder))
        t.equal(await answer(), 'reply')
        const winner = heirs.find((each) => each.isRunning())
        t.match(winner?.output(), /took listeners over/)
        const loser = heirs.find((each) => each !== winner)
        // If the winner started late, it took over from the loser, which then ended well.
        const isSecond = /taken the listeners over/.test(loser?.output() ?? '')
        t.equal(loser?.exitCode(), isSecond ? 0 : 1)
      } catch (error) {
        throw new Error([String(error), ...family.map((each) => each.output())].join('\n'))
      } finally {
        for (const heir of heirs) await heir.stop()
      }
    })
  }),
)

t.test('a process in its first sync is not replaced, but waited for', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    // The first one has no objects yet, so it has synced nothing and has no listeners to hand over.
    const first = runProxy(world, inFolder(folder, join(folder, 'later')))
    await stopping(first, async () => {
      const isStarting = async () =>
        (await readdir(folder)).some((name) => name.includes('.successor'))
      await until('it starts', isStarting)
      const early = runProxy(world, [...inFolder(folder), '--takeover'])
      await stopping(early, () => until('the early one ends', () => !early.isRunning()))
      t.equal(early.exitCode(), 1)
      t.match(early.output(), /another process starts or takes over now .*; start it again/)
      t.ok(first.isRunning())
      await mkdir(join(folder, 'later'))
      await write(join(folder, 'later'), 'all.yaml', service, ...slices)
      await until('it may be asked', () => hasPlace(folder))
      const late = runProxy(world, [...inFolder(folder, join(folder, 'later')), '--takeover'])
      await stopping(late, async () => {
        await until('the first has given its listeners', () => !first.isRunning())
        t.equal(first.exitCode(), 0)
        t.match(late.output(), /took listeners over/)
      })
    })
  }),
)

t.test('the old process goes on if the new one dies during the takeover', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, ...slices)
    const first = runProxy(world, inFolder(folder))
    const ask = async () => {
      const flow = {
        protocol: 'TCP',
        host: clusterIps[0],
        port: 80,
        timeoutMs: patient,
      } as const
      return (await world.agent('client-pod').flow(flow))[0]?.outcome
    }
    await stopping(first, async () => {
      await until('a place to ask', () => hasPlace(folder))
      // The thief takes all listeners and is killed.
      const thief = world.spawn('node', [
        process.execPath,
        new URL('./listener-thief.js', import.meta.url).pathname,
        folder,
      ])
      const [text] = (await once(thief.stdout, 'data')) as [Buffer]
      t.equal(Number(String(text)), 4, 'TCP and UDP of two families')
      thief.kill('SIGKILL')
      t.equal(await ask(), 'reply', 'a client that came meanwhile waited')
      await until('it says so', () => /taking them back/.test(first.output()))
      t.equal(await ask(), 'reply')
    })
  }),
)

/** A folder of programs that cannot load the match `socket`, as without the kernel module. */
async function withoutSocketMatch(folder: string): Promise<string> {
  const path = process.env['PATH'] ?? ''
  const script = `#!/bin/sh
text=$(cat)
case "$text" in *socket*) echo "Couldn't load match socket" >&2; exit 2 ;; esac
export PATH='${path}'
printf '%s\\n' "$text" | "\${0##*/}" "$@"
`
  const programs = await mkdtemp(join(folder, 'programs-'))
  for (const program of ['iptables', 'ip6tables']) {
    for (const name of [`${program}-restore`, `${program}-nft-restore`]) {
      await writeFile(join(programs, name), script, { mode: 0o755 })
    }
  }
  return `${programs}:${path}`
}

t.test('a successor whose first sync fails gives the listeners back', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, ...slices)
    const hiding = [...inFolder(folder), '--userspace-source-address', 'hide']
    await besideProxy(world, folder, hiding, async () => {
      const keeping = [...inFolder(folder), '--takeover', '--userspace-source-address', 'keep']
      const by = ['env', `PATH=${await withoutSocketMatch(folder)}`]
      const second = runProxy(world, keeping, undefined, by)
      await stopping(second, () => until('it ends', () => !second.isRunning()))
      t.equal(second.exitCode(), 1)
      t.match(second.output(), /took listeners over/)
      t.match(second.output(), /keep: .*match socket/)
      const flow = { protocol: 'TCP', host: clusterIps[0], port: 80, timeoutMs: patient } as const
      t.equal((await world.agent('client-pod').flow(flow))[0]?.outcome, 'reply')
    })
  }),
)

// The kernel lets two wait for the old process, and refuses the third.
t.test('successors tell that the old process is silent, and can be stopped', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, ...slices)
    const telling = ['sh', '-c', 'echo "process $$"; exec "$@"', 'sh']
    const first = runProxy(world, inFolder(folder), undefined, telling)
    await stopping(first, async () => {
      await until('a place to ask', () => hasPlace(folder))
      const rules = await proxyPorts(world)
      const pid = Number(/process (\d+)/.exec(first.output())?.[1])
      process.kill(pid, 'SIGSTOP')
      try {
        for (let tries = 0; tries < 3; tries++) {
          const late = runProxy(world, [...inFolder(folder), '--takeover'])
          await until('it says so', () => /serves now does not answer/.test(late.output()))
          void late.stop()
          await until('it ends', () => !late.isRunning())
          t.equal(late.exitCode(), 0)
          t.ok(await hasPlace(folder), 'the place stays')
        }
        t.same(await proxyPorts(world), rules, 'and so do the rules')
        const last = runProxy(world, [...inFolder(folder), '--takeover'])
        await stopping(last, async () => {
          await until('it waits', () => /serves now does not answer/.test(last.output()))
          process.kill(pid, 'SIGCONT')
          await until('it has the listeners', () => /took listeners over/.test(last.output()))
          await until('the first ends', () => !first.isRunning())
          const flow = {
            protocol: 'TCP',
            host: clusterIps[0],
            port: 80,
            timeoutMs: patient,
          } as const
          t.equal((await world.agent('client-pod').flow(flow))[0]?.outcome, 'reply')
        })
      } finally {
        if (first.isRunning()) process.kill(pid, 'SIGCONT')
      }
    })
  }),
)

t.test('a second process that does not take over takes nothing from the first', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, ...slices)
    await besideProxy(world, folder, inFolder(folder), async (first) => {
      const rules = await proxyPorts(world)
      // It never knows the objects, so it never asks for the listeners.
      const early = runProxy(world, [...inFolder(folder, join(folder, 'later')), '--takeover'])
      await stopping(early, () => until('it runs', () => /worker is ready/.test(early.output())))
      t.same(await proxyPorts(world), rules, 'a successor that ends early leaves the rules')
      const without = runProxy(world, inFolder(folder))
      await stopping(without, () =>
        until('it sees the other', () => /another process waits at/.test(without.output())),
      )
      t.ok(await hasPlace(folder), 'without --takeover: also after that one has gone')
      t.ok(first.isRunning())
    })
    t.notOk(await hasPlace(folder))
    t.notOk(await proxyPorts(world), 'the first removes them')
  }),
)

t.test('a process that took over sockets closes those of removed Services', { skip }, (t) =>
  inWorld(async ({ world, folder }) => {
    await write(folder, 'all.yaml', service, ...slices)
    const others = await listeningOn(world)
    await besideProxy(world, folder, inFolder(folder), async (first) => {
      const before = (await listeningOn(world)).filter((port) => !others.includes(port))
      const nothing = await mkdtemp(join(folder, 'nothing-'))
      const second = runProxy(world, [...inFolder(folder, nothing), '--takeover'])
      await stopping(second, async () => {
        await until('the first ends', () => !first.isRunning())
        t.ok(await hasPlace(folder), 'the next one may ask')
        t.match(second.output(), /"listeners":4|listeners.*4/)
        const after = await listeningOn(world)
        t.same(
          after.filter((port) => before.includes(port) && !isOwn(port)),
          [],
        )
      })
    })
  }),
)
