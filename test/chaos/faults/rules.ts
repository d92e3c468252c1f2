import { detachAll, withMap } from '../../support/ebpf-node.js'
import type { Stage } from '../stage.js'
import { allLost, newOnesRefused, nothingLost, type FaultGroup } from '../fault.js'

/** The faults that other programs of the node cause in the rules. */
export const ruleFaults: FaultGroup = {
  title: 'The rules',
  lane: 'node',
  faults: [
    {
      name: 'Our rules flushed by another program',
      target: newOnesRefused(12),
      inject: async (stage) => {
        await flush(stage)
        return undefined
      },
    },
    {
      name: 'All rules of the node deleted by another program',
      target: allLost(12),
      inject: async (stage) => {
        await stage.node('nft', 'flush', 'ruleset')
        return () => stage.addPluginRules()
      },
    },
    {
      name: 'All socket programs detached by another program',
      modes: ['ebpf'],
      // A UDP socket that waits gets its answer from the endpoint's address, refuses it and asks
      // again.
      target: nothingLost(12),
      inject: async ({ world }) => {
        detachAll(world.cgroup ?? '')
        return undefined
      },
    },
    {
      name: 'All socket programs detached by another program while the proxy is dead',
      modes: ['ebpf'],
      target: nothingLost(12),
      inject: async ({ world, daemon }) => {
        await daemon.ended('SIGKILL')
        detachAll(world.cgroup ?? '')
        daemon.start()
        return undefined
      },
    },
    {
      name: 'All frontends deleted from the maps by another program',
      modes: ['ebpf'],
      stage: { flags: ['--iptables-sync-period=1s'] },
      // Without a frontend a connection takes the packet path.
      target: nothingLost(12),
      inject: async ({ world }) => {
        withMap(world.cgroup ?? '', 'frontends', (map) => {
          map.deleteAll(map.entries().map(([key]) => key))
        })
        return undefined
      },
    },
    {
      name: 'Older rules restored by another program, after a new start',
      modes: ['iptables', 'userspace'],
      target: newOnesRefused(12),
      // The restart of the daemon ends open connections.
      targets: { userspace: allLost(12) },
      inject: async (stage) => {
        const saved = await Promise.all(
          ['iptables-save', 'ip6tables-save'].map((program) => stage.node(program)),
        )
        await stage.daemon.ended('SIGKILL')
        stage.daemon.start()
        await stage.recovered(performance.now())
        for (const [index, program] of ['iptables-restore', 'ip6tables-restore'].entries()) {
          await stage.world.exec('node', [program], { stdin: saved[index] ?? '' })
        }
        return undefined
      },
    },
    {
      name: 'Rules of others written 20 times a second',
      target: nothingLost(5),
      inject: async ({ world }) => {
        const neighbour = world.spawn('node', ['sh', '-c', neighbourScript])
        return async () => void neighbour.kill('SIGKILL')
      },
    },
    {
      name: "Another program holds iptables' lock for 10 s (iptables-legacy)",
      modes: ['iptables', 'userspace'],
      stage: {
        before: ['iptables-legacy', 'ip6tables-legacy'].map((program) => [
          ...[program, '-t', 'mangle', '-N', 'KUBE-IPTABLES-HINT'],
        ]),
        // The lock is in a separate /run: the real one would stop every other node of this machine.
        by: ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs none /run && exec "$0" "$@"'],
      },
      target: nothingLost(15),
      inject: async ({ world, daemon }) => {
        const lock = `/proc/${daemon.pid}/root/run/xtables.lock`
        world.spawn('node', ['flock', lock, 'sleep', '10'])
        return undefined
      },
    },
  ],
}

/** Empties all our chains in both families; with iptables also those of others. */
async function flush({ mode, world }: Stage): Promise<void> {
  if (mode === 'nftables' || mode === 'ebpf') {
    for (const family of ['ip', 'ip6']) {
      await world.exec('node', ['nft', 'flush', 'table', family, 'kube-proxy'])
    }
    return
  }
  for (const program of ['iptables', 'ip6tables']) {
    for (const table of ['nat', 'filter', 'mangle']) {
      await world.exec('node', [program, '-t', table, '-F'])
    }
  }
}

const neighbourScript = `
  nft add table inet neighbour
  nft add chain inet neighbour some
  while :; do
    nft add rule inet neighbour some counter
    nft flush chain inet neighbour some
    sleep 0.1
  done`
