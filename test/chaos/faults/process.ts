import { setTimeout as delay } from 'node:timers/promises'
import { allLost, nothingLost, type FaultGroup } from '../fault.js'
import type { Stage } from '../stage.js'
import { until } from '../../support/until.js'

/** Open connections may be lost when the old process does not wait for them any longer. */
const drained = { fresh: 'nothing', open: 'until repaired', seconds: 5 } as const

/** Waits for the first syncs: before them a process has no listeners to hand over. */
const firstSyncsOf = ({ daemon }: Stage): Promise<void> =>
  until(
    () => 'the first syncs of the daemon',
    () =>
      ['IPv4', 'IPv6'].every((family) =>
        new RegExp(`"family":"${family}".*SyncProxyRules complete`).test(daemon.output()),
      ),
  )

/** The faults of the process itself. */
export const processFaults: FaultGroup = {
  title: 'The process',
  lane: 'node',
  faults: [
    {
      name: 'SIGKILL, and a new start',
      target: nothingLost(5),
      targets: { userspace: allLost(10) },
      inject: async ({ daemon }) => {
        await daemon.ended('SIGKILL')
        daemon.start()
        return undefined
      },
    },
    {
      name: 'SIGTERM (SIGKILL after 2 s, if it still drains), and a new start',
      target: nothingLost(5),
      targets: { userspace: allLost(10) },
      inject: async ({ daemon }) => {
        daemon.signal('SIGTERM')
        // In userspace mode the daemon waits for its clients, and these never end.
        await Promise.race([daemon.ended(), delay(2_000)])
        await daemon.ended('SIGKILL')
        daemon.start()
        return undefined
      },
    },
    {
      name: 'SIGTERM twice, and a new start',
      target: nothingLost(5),
      targets: { userspace: allLost(10) },
      inject: async ({ daemon }) => {
        daemon.signal('SIGTERM')
        // The kernel makes one signal of two at the same time.
        await delay(10)
        await daemon.ended('SIGTERM')
        daemon.start()
        return undefined
      },
    },
    {
      name: 'A successor with --takeover; open connections drain, at least 5 s',
      modes: ['userspace'],
      target: drained,
      inject: async (stage) => {
        await firstSyncsOf(stage)
        const old = stage.daemon.latest
        await drains(stage, async () => {
          stage.daemon.start('--takeover')
          // Until then the old process may still serve, and has nothing to drain.
          await firstSyncsOf(stage)
        })
        await old.kill()
        return undefined
      },
    },
    {
      name: 'Two successors with --takeover at once: one of them ends',
      modes: ['userspace'],
      target: drained,
      inject: async (stage) => {
        await firstSyncsOf(stage)
        const { daemon } = stage
        const old = daemon.latest
        const both = [daemon.start('--takeover'), daemon.start('--takeover')]
        const running = () => both.filter((one) => one.isRunning()).length
        await until(
          () => 'the end of the old process and of one successor',
          () => !old.isRunning() && running() < 2,
        )
        if (running() === 0) throw new Error(both.map((one) => one.output()).join('\n'))
        return undefined
      },
    },
    {
      name: 'SIGTERM: open connections drain, at least 5 s',
      modes: ['userspace'],
      stage: { isBare: true },
      target: allLost(10),
      inject: async (stage) => {
        await drains(stage, async () => stage.daemon.signal('SIGTERM'))
        await stage.daemon.ended('SIGKILL')
        stage.daemon.start()
        return undefined
      },
    },
    {
      name: 'SIGSTOP for 3 s, then SIGCONT',
      target: nothingLost(5),
      inject: async ({ daemon }) => {
        daemon.signal('SIGSTOP')
        await delay(3_000)
        daemon.signal('SIGCONT')
        return undefined
      },
    },
    {
      name: '1,124 idle connections to the health port, with 1,024 descriptors',
      stage: { by: ['prlimit', '--nofile=1024:1024'] },
      target: nothingLost(5),
      inject: async ({ world }) => {
        const crowd = world.spawn('node', [process.execPath, '-e', crowdScript])
        await new Promise((resolve) => crowd.stdout.once('data', resolve))
        return async () => void crowd.kill('SIGKILL')
      },
    },
    {
      name: 'No descriptor left for 5 s',
      target: nothingLost(40),
      targets: { userspace: { fresh: 'until repaired', open: 'nothing', seconds: 40 } },
      inject: async (stage) => {
        // A process that is still starting may end if it has no descriptors.
        await firstSyncsOf(stage)
        const limit = (soft: string) =>
          stage.node('prlimit', `--pid=${stage.daemon.pid}`, `--nofile=${soft}:`)
        const before = await stage.node('prlimit', `--pid=${stage.daemon.pid}`, ...softLimit)
        await limit('10')
        // The daemon cannot write this change now.
        await stage.change()
        await delay(5_000)
        await limit(before.trim())
        return undefined
      },
    },
    {
      name: 'Output to a full disk',
      stage: { by: ['sh', '-c', 'exec "$0" "$@" >/dev/full 2>/dev/full'] },
      target: nothingLost(5),
      inject: async () => undefined,
    },
  ],
}

/** The old process ends with its last connection, or after `--drain-timeout`. */
async function drains({ traffic }: Stage, begin: () => Promise<void>): Promise<void> {
  const before = traffic.tally.open.lost
  await begin()
  await delay(5_000)
  const lost = traffic.tally.open.lost - before
  if (lost > 0)
    throw new Error(`${lost} open connections ended: ${traffic.tally.losses.join('; ')}`)
}

const softLimit = ['--nofile', '--noheadings', '--output=SOFT']

/** Makes connections one after the other: each waits for the one before to open or fail. */
const crowdScript = `
  const { connect } = require('node:net')
  const { once } = require('node:events')
  const run = async () => {
    for (let count = 0; count < 1124; count++) {
      const socket = connect(10256, '127.0.0.1')
      socket.on('error', () => undefined)
      await Promise.race([once(socket, 'connect'), once(socket, 'close')])
    }
    console.log('all are there')
    setInterval(() => undefined, 1000)
  }
  run()`
