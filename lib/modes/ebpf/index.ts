import { messageOf } from '../../errors.js'
import { networkCookie } from '../../kernel/bpf/network-cookie.js'
import { openSystemCalls } from '../../kernel/bpf/system-calls.js'
import { openCgroup } from '../../kernel/cgroup.js'
import type { Config } from '../../config/config.js'
import type { DesiredState } from '../../state/desired-state.js'
import type { IpFamily } from '../../state/ip.js'
import type { Difference } from '../difference.js'
import { refuseMissing } from '../findings.js'
import { forgetAll, knownByFamily } from '../known.js'
import type { Applied, Log, Mode, ModeContext, ModeDefinition, Planner } from '../mode.js'
import { SocketApplier, type SocketsApplied } from './apply.js'
import { Attachment } from './attachment.js'
import { cleanupSockets } from './cleanup.js'
import { socketDifferences } from './differences.js'
import { guardPrograms } from './guard.js'
import { Pins } from './pins.js'
import { ebpfPlanner, socketPlanner, type EbpfPlan, type SocketPlan } from './plan.js'
import { probeDefaults, probeSockets } from './probe.js'
import { renderSocketChanges, renderSockets } from './render.js'
import { ebpfSettings, type EbpfSettings } from './settings.js'
import { openSharedMaps } from './shared-maps.js'
import { StaleSockets, whyNotEnding } from './stale-sockets.js'

/**
 * The mode over a packet path: `packets` translates what no socket program does, and everything
 * while none is attached. It is used by the interface that all modes have.
 */
export function ebpfMode(packets: ModeDefinition): ModeDefinition {
  return {
    summary: 'connections are translated at the socket, other packets as in nftables mode',
    probe: async (context) => [
      ...probeSockets({ settings: probeDefaults, log: context.log }),
      ...(await packets.probe(context)),
    ],
    prepare: async (config, context) => packets.prepare?.(config, context),
    settle: async (config, family) => (await packets.settle?.(config, family)) ?? config,
    syncPeriods: (config) => packets.syncPeriods(config),
    planner: (config) => plannerOf(ebpfSettings(config), packets.planner(config)),
    create: (config, families, context) => createMode(packets, { config, families, context }),
    differences: async (state, config) => [
      ...differencesOf(state, ebpfSettings(config)),
      ...(await packets.differences(state, config)),
    ],
    cleanup: (context) => cleanupSockets(context),
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

interface Order {
  readonly config: Config
  readonly families: readonly IpFamily[]
  readonly context: ModeContext
}

async function createMode(
  packets: ModeDefinition,
  { config, families, context }: Order,
): Promise<Mode<EbpfPlan>> {
  const settings = ebpfSettings(config)
  refuseMissing('ebpf', probeSockets({ settings, log: context.log }))
  const below = await packets.create(config, families, context)
  const sockets = openSockets(settings, context)
  return {
    ...plannerOf(settings, below),
    apply: async (plan) => {
      // Sockets first: they take a moment, and clients of an endpoint that is gone wait for them.
      const done = await sockets.apply(plan.sockets)
      const ended = done.hasLost ? sockets.endStale() : Promise.resolve(0)
      const [packetsDone] = await Promise.all([below.apply(plan.packets), ended])
      return together(done, packetsDone)
    },
    forget: () => {
      forgetAll(sockets.known)
      below.forget()
    },
    run: async (signal) => {
      await Promise.all([
        below.run(signal),
        sockets.run(signal),
        guardPrograms(sockets.attachment, context, signal, settings.syncPeriodMs),
      ])
    },
    close: async () => {
      await below.close()
      sockets.close()
    },
  }
}

function openSockets(settings: EbpfSettings, context: ModeContext) {
  const calls = openSystemCalls()
  const cgroup = openCgroup(settings.cgroup)
  const opened = Pins.open(calls, settings.bpffs)
  const pins = 'missing' in opened ? undefined : opened
  const shared = openSharedMaps(calls, pins, context.log)
  const attachment = new Attachment({ calls, cgroup, pins })
  const known = knownByFamily<SocketPlan>()
  const notEnding = whyNotEnding()
  const applier = new SocketApplier({
    calls,
    attachment,
    shared: shared.maps,
    hostCookie: networkCookie(),
    sockets: settings.sockets,
    connectedUdp: notEnding === undefined,
    known,
    now: () => performance.now(),
  })
  const stale = new StaleSockets({
    noted: shared.maps.udpSockets,
    members: (family) => applier.tables(family).members,
    log: context.log,
  })
  const fields = {
    cgroup: cgroup.path,
    staysOverRestarts: pins !== undefined,
    connectedUdp: notEnding ?? 'translated',
  }
  context.log.info(fields, 'ebpf mode translates at the sockets of this cgroup')
  let isFirst = true
  return {
    apply: async (plan: SocketPlan) => {
      const done = await applier.apply(plan)
      if (isFirst) removeOrphans(attachment, context.log)
      isFirst = false
      return done
    },
    endStale: () => stale.sweep(),
    run: (signal: AbortSignal) => stale.run(signal),
    attachment,
    known,
    close: () => {
      attachment.close()
      applier.close()
      shared.close()
      cgroup.close()
    },
  }
}

/** What cannot be told is left: the kernel shows links to CAP_SYS_ADMIN only. */
function removeOrphans(attachment: Attachment, log: Log): void {
  try {
    const orphans = attachment.detachOrphans()
    if (orphans > 0) log.warn({ orphans }, 'detached eBPF programs that an earlier run left')
  } catch (error) {
    log.debug({ error: messageOf(error) }, 'could not look for eBPF programs of earlier runs')
  }
}

function together(sockets: SocketsApplied, packets: Applied): Applied {
  return {
    ...packets,
    full: sockets.full || packets.full,
    objects: sockets.objects + packets.objects,
  }
}

function plannerOf(settings: EbpfSettings, packets: Planner): Planner<EbpfPlan> {
  return {
    plan: ebpfPlanner(settings, packets),
    render: (plan) => renderSockets(plan.sockets) + packets.render(plan.packets),
    renderChanges: (plan, previous) =>
      renderSocketChanges(plan.sockets, previous?.sockets) +
      packets.renderChanges(plan.packets, previous?.packets),
  }
}
