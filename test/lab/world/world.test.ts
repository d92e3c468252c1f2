import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { runCommand } from '../../support/run-command.js'
import { addNodeCgroup, removeCgroup, sweepCgroups } from '../../../lib/lab/world/cgroups.js'
import { sweepWorlds } from '../../../lib/lab/world/namespaces.js'
import { addressOf, families, placeOf } from '../../../lib/lab/world/topology.js'
import type { Place } from '../../../lib/lab/world/topology.js'
import { createWorld } from '../../../lib/lab/world/world.js'
import type { World } from '../../../lib/lab/world/world.js'
import { cgroupSkip, startCgroupClient } from '../../support/cgroup-client.js'
import { withoutPrograms, withoutProgramsSkip } from '../../support/without-programs.js'
import { until, untilTrue } from '../../support/until.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'
const protocols = ['TCP', 'UDP'] as const

/** The namespaces whose name contains the text. */
const namespacesWith = (text: string) => {
  try {
    return readdirSync('/run/netns').filter((name) => name.includes(text))
  } catch {
    return []
  }
}
const hostLinks = async () => (await runCommand('ip', ['-o', 'link'])).stdout

await t.test('a world of network namespaces', { skip }, async (t) => {
  const linksBefore = await hostLinks()
  const world: World = await createWorld({ name: 'basic' })
  t.teardown(() => world.close())

  const pairs: readonly (readonly [Place, Place])[] = [
    ['client-pod', 'pod-1'],
    ['client-pod', 'pod-4'],
    ['pod-4', 'pod-1'],
    ['remote-pod', 'node'],
    ['node', 'pod-2'],
    ['node', 'pod-5'],
    ['outside', 'pod-3'],
    ['outside', 'pod-4'],
    ['outside', 'node-2'],
  ]
  for (const [from, to] of pairs) {
    await t.test(`${from} reaches ${to} and is seen as itself`, async (t) => {
      for (const family of families) {
        for (const protocol of protocols) {
          const [result] = await world
            .agent(from)
            .flow({ protocol, host: addressOf(to, family), port: 8080 })
          t.match(result, { outcome: 'reply', backend: to }, `${protocol} ${family}`)
          t.equal(placeOf(result?.source ?? ''), from, `${protocol} ${family}: source`)
        }
      }
    })
  }

  await t.test('a refused request, a dropped request and a reply are told apart', async (t) => {
    for (const family of families) {
      for (const protocol of protocols) {
        const closed = { protocol, host: addressOf('pod-1', family), port: 99 }
        const [refused] = await world.agent('client-pod').flow(closed)
        t.match(refused, { outcome: 'refused' }, `${protocol} ${family}: nobody listens`)
        await world.exec('pod-1', [
          family === 'IPv4' ? 'iptables' : 'ip6tables',
          ...['-I', 'INPUT', '-p', protocol.toLowerCase(), '--dport', '99', '-j', 'DROP'],
        ])
        const [dropped] = await world.agent('client-pod').flow({ ...closed, timeoutMs: 300 })
        t.match(dropped, { outcome: 'dropped' }, `${protocol} ${family}: filtered`)
      }
    }
  })

  await t.test('a connection stays open until it is closed', async (t) => {
    for (const protocol of protocols) {
      const client = world.agent('outside')
      const host = addressOf('pod-2', 'IPv4')
      await client.flow({ protocol, host, port: 8080, keepAs: protocol })
      t.match(await client.send(protocol), { outcome: 'reply', backend: 'pod-2' })
      await client.forget(protocol)
      await t.rejects(client.send(protocol), { message: /no connection of that name/ })
    }
    const client = world.agent('client-pod')
    await client.flow({
      protocol: 'TCP',
      host: addressOf('pod-3', 'IPv4'),
      port: 8080,
      keepAs: 'x',
    })
    await world.agent('pod-3').stopServing()
    t.match(await client.send('x'), { outcome: 'closed' }, 'the backend went away')
  })

  await t.test('requests have the chosen sender, number and size', async (t) => {
    const from = addressOf('outside', 'IPv6', 2)
    const results = await world.agent('outside').flow({
      protocol: 'TCP',
      host: addressOf('pod-1', 'IPv6'),
      port: 8081,
      from,
      count: 100,
      payloadBytes: 20_000,
    })
    t.equal(results.length, 100)
    t.ok(results.every((result) => result.backend === 'pod-1' && result.source === from))
    const [halfClosed] = await world.agent('outside').flow({
      protocol: 'TCP',
      host: addressOf('pod-1', 'IPv4'),
      port: 8081,
      halfClose: true,
    })
    t.match(halfClosed, { outcome: 'reply' }, 'a reply after the client has ended its side')
  })

  await t.test('the bridge returns the packets of a pod that connects to itself', async (t) => {
    const hairpin = await world.exec('node', ['bridge', '-d', 'link', 'show', 'dev', 'vpod-1'])
    t.match(hairpin.stdout, /hairpin on/)
  })

  await t.test('a second world is separate from the first', async (t) => {
    const other = await createWorld({ name: 'other', ports: [7000] })
    const [own] = await other
      .agent('outside')
      .flow({ protocol: 'TCP', host: addressOf('pod-1', 'IPv4'), port: 7000 })
    const [first] = await other
      .agent('outside')
      .flow({ protocol: 'TCP', host: addressOf('pod-1', 'IPv4'), port: 8080 })
    t.match(own, { outcome: 'reply' })
    t.match(first, { outcome: 'refused' })
    await other.close()
    t.same(namespacesWith('-other-'), [])
  })

  t.equal(await hostLinks(), linksBefore, 'the host namespace sees no interface of a world')
  const sleeper = world.spawn('node', ['sleep', '1000'])
  await world.close()
  t.same(namespacesWith('-basic-'), [], 'closing removes every namespace')
  t.equal(sleeper.signalCode, 'SIGKILL', 'and what ran inside')
  await t.rejects(async () => world.agent('node').stopServing(), { message: /closed/ })
})

await t.test('a world is removed when its owner is killed', { skip }, async (t) => {
  const module = new URL('../../../lib/lab/world/world.js', import.meta.url).href
  const script = `
    const { createWorld } = await import('${module}')
    const world = await createWorld({ name: 'crash' })
    const { pid } = world.spawn('node', ['sleep', '100'])
    console.log(pid)
    setInterval(() => undefined, 1000)`
  // A bare system has neither xargs nor a program kill.
  const programs = ['ip', 'sh', 'cat', 'sleep', 'unshare', 'true', 'env', 'mount']
  const found = programs.map((name) => [name, t.fixture('symlink', `/usr/bin/${name}`)] as const)
  const PATH = t.testdir(Object.fromEntries(found))
  const owner = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, PATH },
  })
  const [line] = (await once(owner.stdout, 'data')) as [Buffer]
  const inside = Number(line)
  t.ok(existsSync(`/proc/${inside}`))
  const ours = `kpw-${owner.pid}-`
  t.equal(namespacesWith(ours).length, 10)
  owner.kill('SIGKILL')
  await untilTrue(() => namespacesWith(ours).length === 0, 50)
  t.same(namespacesWith(ours), [])
  await until('the end of what ran in it', () => !existsSync(`/proc/${inside}`))
})

await t.test(
  'a world that lost its owner and its reaper is removed by the next world',
  { skip },
  async (t) => {
    // The id of this process with another start time means an owner that has ended.
    const orphan = `kpw-${process.pid}-1-orphan-node`
    // Another test may make a world and remove it first.
    await until('the removal', async () => {
      await runCommand('ip', ['netns', 'add', orphan])
      return (await sweepWorlds()).includes(orphan)
    })
    t.same(namespacesWith(orphan), [])
  },
)

await t.test('a world whose owner cannot be looked up is no orphan', async (t) => {
  const module = new URL('../../../lib/lab/world/namespaces.js', import.meta.url).href
  const script = `
    const { isOrphan, ownedName } = await import('${module}')
    const { openSync } = await import('node:fs')
    const living = ownedName('try-node')
    const ended = living.replace(/^kpw-\\d+/, 'kpw-4194305')
    const before = [isOrphan(living), isOrphan(ended)]
    try { for (;;) openSync('/dev/null') } catch { /* No descriptor is left. */ }
    console.log(...before, isOrphan(living))`
  const limited = 'ulimit -n 100; exec "$0" --input-type=module --eval "$1"'
  const { stdout, stderr } = await runCommand('sh', ['-c', limited, process.execPath, script])
  t.equal(stdout, 'false true false\n', stderr)
})

await t.test(
  'a cgroup without an owner is removed, unless it has threads',
  { skip: skip || cgroupSkip },
  async (t) => {
    const own = addNodeCgroup('sweep')
    t.teardown(() => removeCgroup(own))
    // The number of this process with another start time: an owner that ended, or lives elsewhere.
    const [idle, busy] = (['idle', 'busy'] as const).map((name) =>
      join(dirname(own), `kpw-${process.pid}-1-${name}`),
    )
    if (idle === undefined || busy === undefined) return
    for (const each of [idle, busy]) {
      mkdirSync(each)
      writeFileSync(join(each, 'cgroup.type'), 'threaded')
    }
    const client = startCgroupClient(busy)
    await client.ask({ do: 'connect', host: '127.0.0.1', port: 1 })
    sweepCgroups()
    t.same([idle, busy, own].map(existsSync), [false, true, true])
    await client.close()
    await removeCgroup(busy)
  },
)

await t.test(
  'without `ip` it says what to install',
  { skip: skip || withoutProgramsSkip() },
  async (t) => {
    const world = new URL('../../../lib/lab/world/world.js', import.meta.url).href
    const script = `(await import('${world}')).createWorld({ name: 'bare' })`
    const words = ['--input-type=module', '--eval', script]
    const link = (name: string) => t.fixture('symlink', `/usr/bin/${name}`)
    const folder = t.testdir({ unshare: link('unshare'), true: link('true'), sh: link('sh') })
    const path = ['/usr/bin/env', `PATH=${folder}`]
    const [file, args] = withoutPrograms([...path, process.execPath, ...words])
    const { code, stderr } = await runCommand(file, args)
    t.not(code, 0)
    t.match(stderr, 'the program ip is missing; install iproute2')
  },
)
