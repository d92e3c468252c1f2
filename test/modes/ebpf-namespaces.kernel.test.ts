import { readdirSync, renameSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { stringify } from 'yaml'
import { configWith } from '../../lib/config/load.js'
import { attachedPrograms } from '../../lib/kernel/bpf/attached.js'
import { networkCookie } from '../../lib/kernel/network-namespaces.js'
import { openSystemCalls } from '../../lib/kernel/bpf/system-calls.js'
import { openCgroup } from '../../lib/kernel/cgroup.js'
import { cleanupSockets } from '../../lib/modes/ebpf/cleanup.js'
import { ebpfMode } from '../../lib/modes/ebpf/index.js'
import { pinFolders } from '../../lib/modes/ebpf/names.js'
import { isOfOtherNetwork } from '../../lib/modes/ebpf/network-note.js'
import { firstObjects } from '../chaos/cluster.js'
import { Daemon } from '../chaos/daemon.js'
import { withProxyWorld } from '../e2e/proxy-world.js'
import { cgroupSkip, serveTcp } from '../support/cgroup-client.js'
import { createNode, mountBpffs, noPackets, seeingOnly } from '../support/ebpf-node.js'
import { contextOf } from '../support/mode-context.js'
import { program } from '../support/program.js'
import { service, states } from '../support/states.js'
import { until } from '../support/until.js'

const skip = cgroupSkip
/** The daemon elsewhere has no such Service. */
const clusterIp = '10.97.0.10'
const here = `${pinFolders.network}${networkCookie()}`

/** Whose programs are at a hook of a cgroup, in the order in which they run. */
function programsAt(folder: string): readonly ('here' | 'elsewhere')[] {
  const [calls, cgroup] = [openSystemCalls(), openCgroup(folder)]
  try {
    return attachedPrograms(calls, cgroup.fd, 'connect4').map(({ id }) =>
      isOfOtherNetwork(calls, id, networkCookie()) ? 'elsewhere' : 'here',
    )
  } finally {
    cgroup.close()
  }
}

/** The daemon in a network namespace of its own. */
interface Elsewhere {
  readonly cgroup: string
  /**
   * Ends the one that runs, and starts another one; both keep what was pinned. The answer is what it
   * has logged after its first sync.
   */
  readonly restart: (mode: 'ebpf' | 'nftables', cgroup?: string) => Promise<string>
  /** Ends the one that runs, and runs the command. */
  readonly cleanup: () => Promise<void>
}

function withDaemonElsewhere(
  bpffs: string,
  act: (elsewhere: Elsewhere) => Promise<void>,
): Promise<void> {
  return withProxyWorld(
    'ebpf-elsewhere',
    async ({ world, folder }) => {
      const objects = join(folder, 'objects.yaml')
      const texts = firstObjects().map((each) => stringify(each))
      await writeFile(objects, texts.join('---\n'))
      const flags = [
        ...[
          '--proxy-mode-fallback=userspace',
          '--manifests',
          objects,
          '--hostname-override',
          'node-1',
        ],
        ...['--cluster-cidr', '10.244.0.0/16', '--ebpf-bpffs', bpffs],
      ]
      const daemon = new Daemon(world, flags, seeingOnly(bpffs))
      const { cgroup = '' } = world
      let isStarted = false
      const stop = () => (isStarted ? daemon.ended('SIGTERM') : Promise.resolve())
      try {
        await act({
          cgroup,
          restart: async (mode, served = cgroup) => {
            await stop()
            isStarted = true
            const proxy = daemon.start('--proxy-mode', mode, '--ebpf-cgroup', served)
            await until(`the first sync of ${mode} mode`, () => {
              if (proxy.isRunning()) return /SyncProxyRules complete[^]*IPv6/.test(proxy.output())
              throw new Error('the proxy has ended')
            })
            return proxy.output()
          },
          cleanup: async () => {
            await stop()
            const argv = [...seeingOnly(bpffs), process.execPath, program, 'cleanup']
            const { code, stderr } = await world.exec('node', argv)
            if (code !== 0) throw new Error(stderr)
          },
        })
      } catch (error) {
        throw new Error(`${String(error)}\n${daemon.output()}`, { cause: error })
      } finally {
        await stop()
      }
    },
    { withCgroup: true },
  )
}

/** A Service that answers on the loopback of this network namespace. */
async function loopbackService(t: Test) {
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  return states('IPv4', { endpointRules: { allowsLoopback: true } }).put(
    service({ clusterIp, endpoints }),
  )
}

t.test('two network namespaces with one bpffs: each has pins of its own', { skip }, async (t) => {
  const node = await createNode(t, 'networks')
  const bpffs = mountBpffs(t)
  const cluster = await loopbackService(t)
  const all = join(bpffs, pinFolders.own)
  const startHere = async () => {
    const { mode, apply } = await node.start({ 'ebpf.bpffs': bpffs })
    await apply(cluster)
    await mode.close()
  }
  const asked = async () =>
    (await node.client.ask({ do: 'connect', host: clusterIp, port: 80 })).name
  await withDaemonElsewhere(bpffs, async (elsewhere) => {
    await startHere()
    const pinned = readdirSync(join(all, here, pinFolders.version))
    await elsewhere.restart('ebpf')
    t.same(programsAt(elsewhere.cgroup), ['elsewhere'])
    t.equal(readdirSync(all).length, 2, 'two folders')

    await elsewhere.restart('nftables')
    await until('its pins to be gone', () => readdirSync(all).join() === here)
    t.same(readdirSync(all), [here], 'a start in another mode removes its own pins')
    t.same(programsAt(elsewhere.cgroup), [], 'and its programs')
    t.same(readdirSync(join(all, here, pinFolders.version)), pinned)
    t.same(programsAt(node.cgroup), ['here'])
    t.equal(await asked(), 'one')

    await elsewhere.restart('ebpf')
    await cleanupSockets(contextOf().context, [bpffs])
    t.notOk(readdirSync(all).includes(here), 'cleanup removes its own pins')
    t.same(programsAt(node.cgroup), [])
    t.equal(readdirSync(all).length, 1)
    t.same(programsAt(elsewhere.cgroup), ['elsewhere'])

    await startHere()
    await elsewhere.cleanup()
    t.same(readdirSync(all), [here], 'the command also removes its own pins')
    t.same(programsAt(elsewhere.cgroup), [])
    t.same(programsAt(node.cgroup), ['here'])
    t.equal(await asked(), 'one')
  })
})

t.test('a configured folder that is no cgroup: the packet path, and why', { skip }, async (t) => {
  await withDaemonElsewhere('', async (elsewhere) => {
    const logged = await elsewhere.restart('ebpf', '/proc')
    t.match(logged, /\/proc[^\n]*set ebpf\.cgroup to a folder of cgroup2/)
    t.match(logged, /nftables/)
    t.same(programsAt(elsewhere.cgroup), [])
  })
})

t.test('two network namespaces with one cgroup: each has its programs', { skip }, async (t) => {
  const { cgroup, client, start } = await createNode(t, 'shared')
  const bpffs = mountBpffs(t)
  const cluster = await loopbackService(t)
  await withDaemonElsewhere(bpffs, async (elsewhere) => {
    await elsewhere.restart('ebpf', cgroup)
    const [orphan, fresh] = [await start(), await start()]
    t.teardown(() => Promise.all([orphan, fresh].map(({ mode }) => mode.close())))
    await orphan.apply(cluster)
    await fresh.apply(cluster)
    t.same(programsAt(cgroup), ['elsewhere', 'here'], 'only what is forgotten here is detached')
    t.equal((await client.ask({ do: 'connect', host: clusterIp, port: 80 })).name, 'one')
    const config = configWith({ 'ebpf.cgroup': cgroup })
    const differences = await ebpfMode(noPackets).differences(cluster.take(), config)
    t.same(differences, [], 'the maps of its own programs are compared')

    await elsewhere.restart('ebpf', cgroup)
    t.same(programsAt(cgroup), ['elsewhere', 'here'], 'nor does the other one detach these')
  })
})

t.test('an upgrade continues with pins without network namespaces', { skip }, async (t) => {
  const { cgroup, client, start } = await createNode(t, 'upgrade')
  const bpffs = mountBpffs(t)
  const cluster = await loopbackService(t)
  const all = join(bpffs, pinFolders.own)
  const connect = async () => (await client.ask({ do: 'connect', host: clusterIp, port: 80 })).name
  const counted = async (page: () => Promise<string>) =>
    /kubeproxy_service_connections_total{[^}]*} (\d+)/.exec(await page())?.[1]
  const config = { 'ebpf.bpffs': bpffs } as const
  const asBefore = () => {
    renameSync(join(all, here, pinFolders.version), join(all, pinFolders.version))
  }
  const before = await start(config)
  await before.apply(cluster)
  t.equal(await connect(), 'one')
  await before.mode.close()
  asBefore()
  t.equal(await connect(), 'one')
  const { mode, apply, page } = await start(config)
  t.equal(await connect(), 'one', 'the old programs translate until the new ones are there')
  await apply(cluster)
  t.same(programsAt(cgroup), ['here'])
  t.same(readdirSync(all), [here])
  t.equal(await counted(page), '3', 'the numbers go on')
  await mode.close()

  asBefore()
  await cleanupSockets(contextOf().context, [bpffs])
  t.same(programsAt(cgroup), [], 'cleanup removes them, too')
  t.notOk(readdirSync(bpffs).includes(pinFolders.own))
})
