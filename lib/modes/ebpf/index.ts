import { setTimeout as delay } from 'node:timers/promises'
import { openSystemCalls } from '../../kernel/bpf/system-calls.js'
import { openCgroup } from '../../kernel/cgroup.js'
import type { Config } from '../../config/config.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { Difference } from '../difference.js'
import { refuseMissing } from '../findings.js'
import type { Applied, Mode, ModeContext, ModeDefinition } from '../mode.js'
import type { SocketsApplied } from './apply.js'
import { cleanupSockets } from './cleanup.js'
import { socketDifferences } from './differences.js'
import { socketPlanner, type EbpfPlan } from './plan.js'
import { ebpfReader, plannerOf } from './render.js'
import { probeDefaults, probeSockets } from './probe.js'
import { ebpfSettings, type EbpfSettings } from './settings.js'
import { openSockets } from './sockets.js'

/** The longest time that packets wait for sockets at a sync. */
const headStartMs = 50

/**
 * Makes the mode on top of a packet path. `packets` is another mode. It translates what no socket
 * program translates, and everything while no program is attached.
 */
export function ebpfMode(packets: ModeDefinition): ModeDefinition {
  return {
    ...packets,
    summary: 'connections are translated at the socket, other packets as in nftables mode',
    probe: async ({ log }, config) => [
      ...probeSockets({ settings: config ? ebpfSettings(config) : probeDefaults, log }),
      ...(await packets.probe({ log }, config)),
    ],
    planner: (config) => ebpfReader(config, packets.planner(config)),
    create: (config, families, context) => createMode(packets, config, families, context),
    differences: async (state, config) => [
      ...differencesOf(state, ebpfSettings(config)),
      ...(await packets.differences(state, config)),
    ],
    cleanup: (context, _config, options) =>
      cleanupSockets(context, undefined, options?.sparesUsed === true ? 'debug' : 'info'),
  }
}

function differencesOf(state: DesiredState, settings: EbpfSettings): readonly Difference[] {
  const cgroup = openCgroup(settings.cgroup)
  try {
    return socketDifferences(socketPlanner(settings)(state), openSystemCalls(), cgroup.fd)
  } finally {
    cgroup.close()
  }
}

async function createMode(
  packets: ModeDefinition,
  config: Config,
  families: readonly IpFamily[],
  context: ModeContext,
): Promise<Mode<EbpfPlan>> {
  let settings = ebpfSettings(config)
  refuseMissing('ebpf', probeSockets({ settings, log: context.log }))
  const sockets = openSockets(settings, context)
  const below = await packets.create(config, families, context).catch(async (error: unknown) => {
    await sockets.close()
    throw error
  })
  return {
    ...plannerOf(settings, below),
    reconfigure: (next) => {
      settings = ebpfSettings(next)
      return below.reconfigure(next)
    },
    apply: async (plan) => {
      const atSockets = sockets.apply(plan.sockets)
      // Sockets begin, because stale sockets should end before a large change of packets keeps this
      // thread busy. Packets go on when sockets take long or fail.
      await Promise.race([Promise.allSettled([atSockets]), delay(headStartMs)])
      const atPackets = below.apply(plan.packets)
      await Promise.allSettled([atSockets, atPackets])
      return together(await atSockets, await atPackets)
    },
    countTraffic: async () => {
      sockets.countTraffic()
      await below.countTraffic?.()
    },
    forget: () => {
      sockets.forget()
      below.forget()
    },
    run: async (signal) => {
      await Promise.all([below.run(signal), sockets.run(signal, () => settings.syncPeriodMs)])
    },
    close: async () => {
      await below.close()
      await sockets.close()
    },
  }
}

function together(sockets: SocketsApplied, packets: Applied): Applied {
  return {
    ...packets,
    full: sockets.full || packets.full,
    objects: sockets.objects + packets.objects,
  }
}
