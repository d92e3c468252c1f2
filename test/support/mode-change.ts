import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Test } from 'tap'
import { stringify } from 'yaml'
import type { ModeName } from '../../lib/config/config.js'
import { attachedPrograms } from '../../lib/kernel/bpf/attached.js'
import { openSystemCalls } from '../../lib/kernel/bpf/system-calls.js'
import { openCgroup } from '../../lib/kernel/cgroup.js'
import type { RunningProxy } from '../../lib/lab/playground/proxy-process.js'
import type { World } from '../../lib/lab/world/world.js'
import { firstObjects } from '../chaos/cluster.js'
import { Daemon } from '../chaos/daemon.js'
import { Traffic, type Pace } from '../chaos/traffic.js'
import { withProxyWorld } from '../e2e/proxy-world.js'
import { mountBpffs, seeingOnly } from './ebpf-node.js'
import { until } from './until.js'

/** The clients of `Traffic`: three in each family keep a connection open, four open new ones. */
const clients = { open: 6, fresh: 8 }

/**
 * One mode after the other on the same node, each in a process of its own, while clients make connections
 * and others keep theirs. Nothing is lost, but what IPVS has translated, because only IPVS knows it, and
 * what the process of userspace mode has carried.
 */
export function changesOfMode(
  t: Test,
  modes: readonly ModeName[],
  pace?: Partial<Pace>,
): Promise<void> {
  const bpffs = mountBpffs(t)
  const act = async ({ world, folder }: { readonly world: World; readonly folder: string }) => {
    const manifests = join(folder, 'objects.yaml')
    await writeFile(
      manifests,
      firstObjects()
        .map((each) => stringify(each))
        .join('---\n'),
    )
    const daemon = new Daemon(world, flagsOf(world, manifests, bpffs), seeingOnly(bpffs))
    let traffic: Traffic | undefined
    let before: ModeName | undefined
    try {
      for (const mode of modes) {
        // Programs and rules of the one before stay in force until those of the next one are.
        if (before !== undefined) await daemon.ended('SIGTERM')
        await inForce(world, mode, daemon.start('--proxy-mode', mode))
        traffic ??= new Traffic(world, pace)
        await served(traffic)
        const { fresh, open, losses } = traffic.take()
        const counts = `${open.tried} questions on open connections, ${fresh.tried} new connections`
        const what = `${before ?? 'nothing'} → ${mode}: ${counts}`
        for (const each of losses) t.comment(each)
        if (before === 'userspace') {
          // Its process carried the connections, and a stop removes its rules first.
          t.ok(open.tried > 0 && fresh.tried > 0, `${what}: all are served anew`)
        } else if (before === 'ipvs') {
          // Each is lost once, and its client opens another one. A short one may be under way.
          t.ok(open.lost <= clients.open, `${what}: ${open.lost} of those through IPVS end`)
          t.ok(fresh.lost <= clients.fresh, `${what}: ${fresh.lost} new ones ended with IPVS`)
        } else t.same([open.lost, fresh.lost], [0, 0], `${what}: none is lost`)
        before = mode
      }
    } catch (error) {
      throw new Error(`${String(error)}\n${daemon.output()}`, { cause: error })
    } finally {
      await traffic?.stop()
      await daemon.ended('SIGTERM')
    }
  }
  return withProxyWorld(`change-${modes.join('-')}`, act, { withCgroup: true })
}

const flagsOf = ({ cgroup = '' }: World, manifests: string, bpffs: string) => [
  ...['--proxy-mode-fallback=none', '--manifests', manifests, '--hostname-override', 'node-1'],
  ...['--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48'],
  ...['--metrics-bind-address', '127.0.0.1:10249', '--healthz-bind-address', '127.0.0.1:10256'],
  ...['--ebpf-cgroup', cgroup, '--ebpf-bpffs', bpffs, '--drain-timeout', '1s'],
]

/** Its rules are written, and what the mode before left is gone. */
async function inForce(world: World, mode: ModeName, proxy: RunningProxy): Promise<void> {
  await until(
    () => `the first sync of ${mode} mode`,
    () => {
      if (proxy.isRunning()) return /SyncProxyRules complete[^]*IPv6/.test(proxy.output())
      throw new Error(`the proxy in ${mode} mode has ended`)
    },
  )
  let left = ''
  await until(
    () => `${left} to be removed in ${mode} mode`,
    async () => {
      left = (await leftBy(world, mode)).join(' and ')
      return left === ''
    },
  )
}

/** What only other modes have. */
async function leftBy(world: World, mode: ModeName): Promise<readonly string[]> {
  const shown = async (...argv: readonly string[]) => (await world.exec('node', argv)).stdout
  const servers = mode !== 'ipvs' && (await shown('ip', '-o', 'link')).includes('kube-ipvs0')
  const hasTable = mode === 'nftables' || mode === 'ebpf'
  const table = !hasTable && (await shown('nft', 'list', 'tables')).includes('kube-proxy')
  const programs = mode !== 'ebpf' && world.cgroup !== undefined && hasPrograms(world.cgroup)
  return Object.entries({ servers, table, programs }).flatMap(([name, is]) => (is ? [name] : []))
}

function hasPrograms(folder: string): boolean {
  const cgroup = openCgroup(folder)
  try {
    return attachedPrograms(openSystemCalls(), cgroup.fd, 'connect4').length > 0
  } finally {
    cgroup.close()
  }
}

/** Every client has asked and was answered in the mode as it is now. */
async function served(traffic: Traffic): Promise<void> {
  const since = performance.now()
  await until(
    () => `answers to: ${traffic.waiting(since).join(', ')}`,
    () => traffic.waiting(since).length === 0,
  )
}
