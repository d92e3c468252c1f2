import { setTimeout as delay } from 'node:timers/promises'
import { fillerAddress, probe, slicesOf } from '../cluster.js'
import { nothingLost, type FaultGroup } from '../fault.js'
import type { Stage } from '../stage.js'
import { until } from '../../support/until.js'

const preload = new URL('../changed-node.js', import.meta.url).href
const changed = (...settings: readonly string[]) => ({
  by: ['env', `NODE_OPTIONS=--import=${preload}`, ...settings],
})

/** The faults of a node: it takes from a process what the process needs. */
export const machineFaults: FaultGroup = {
  title: 'The machine',
  lane: 'node',
  faults: [
    {
      name: 'CAP_NET_ADMIN taken away for 5 s',
      stage: changed('RIGHTS=1'),
      target: nothingLost(40),
      inject: async (stage) => {
        stage.daemon.signal('SIGUSR2')
        // The daemon cannot write this change now.
        await stage.change()
        await until(
          () => 'a failed sync',
          () => stage.daemon.output().includes('sync failed'),
        )
        await delay(5_000)
        stage.daemon.signal('SIGWINCH')
        return undefined
      },
    },
    {
      name: 'The clock set 5 h forth, then 10 h back',
      stage: changed(),
      target: nothingLost(5),
      inject: async (stage) => {
        for (const [signal, pod] of [
          ['SIGUSR2', 'pod-2'],
          ['SIGWINCH', 'pod-4'],
        ] as const) {
          stage.daemon.signal(signal)
          await stage.api.put(...slicesOf(probe.name, [pod]))
          await staysHealthy(stage)
        }
        return undefined
      },
    },
    {
      name: 'A crowd of 600 idle clients at one Service, with 1,024 descriptors',
      modes: ['userspace'],
      stage: { by: ['prlimit', '--nofile=1024:1024'] },
      target: nothingLost(5),
      inject: async ({ world }) => {
        const crowd = world.spawn('client-pod', [
          ...[process.execPath, '-e', crowdScript, fillerAddress(0).IPv4],
        ])
        await new Promise((resolve) => crowd.stdout.once('data', resolve))
        await delay(3_000)
        return async () => void crowd.kill('SIGKILL')
      },
    },
  ],
}

/**
 * Throws if the daemon reports bad health within a second. One program asks ten times, because on
 * an emulated processor the start of a program takes many seconds.
 */
async function staysHealthy(stage: Stage): Promise<void> {
  await stage.node(process.execPath, '-e', healthScript)
}

const healthScript = `
  const { setTimeout: delay } = require('node:timers/promises')
  const run = async () => {
    for (let count = 0; count < 10; count++) {
      const answer = await fetch('http://127.0.0.1:10256/livez')
      if (!answer.ok) throw new Error(answer.status + ' ' + (await answer.text()))
      await delay(100)
    }
  }
  run()`

/** Makes many connections that send nothing, and prints a line after the last attempt. */
const crowdScript = `
  const { connect } = require('node:net')
  for (let count = 0; count < 600; count++) {
    connect({ host: process.argv[1], port: 80 }).on('error', () => undefined)
  }
  setTimeout(() => console.log('all are there'), 1000)
  setInterval(() => undefined, 1000)`
