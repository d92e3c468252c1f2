import { pause } from '../../async.js'
import { messageOf } from '../../errors.js'
import { networkCookie } from '../../kernel/network-namespaces.js'
import { openSystemCalls } from '../../kernel/bpf/system-calls.js'
import { openCgroup } from '../../kernel/cgroup.js'
import { forgetAll, knownByFamily } from '../known.js'
import type { Log, ModeContext } from '../mode.js'
import { SocketApplier, type SocketsApplied } from './apply.js'
import { Attachment } from './attachment.js'
import { OpenFlowMaps } from './flow-maps.js'
import { guardSockets } from './guard.js'
import { countedLists, type CountedLists } from './counted-lists.js'
import { OpenCounts } from './open-counts.js'
import { Pins } from './pins.js'
import type { SocketPlan } from './plan.js'
import type { EbpfSettings } from './settings.js'
import { RefusedCalls } from './refused-calls.js'
import { SocketFlows } from './socket-flows.js'
import { OpenSharedMaps } from './shared-maps.js'
import { Statistics } from './statistics.js'
import { StaleSockets, whyNotEnding } from './stale-sockets.js'

/** The half of the mode that works at sockets. */
interface Sockets {
  apply(plan: SocketPlan): Promise<SocketsApplied>
  /** Brings the metrics of connections up to date. */
  countTraffic(): void
  forget(): void
  run(signal: AbortSignal, syncPeriodMs: () => number): Promise<void>
  /** Ends what still runs. Pinned programs stay attached. */
  close(): Promise<void>
}

export function openSockets(settings: EbpfSettings, context: ModeContext): Sockets {
  const { log } = context
  const calls = openSystemCalls()
  const cgroup = openCgroup(settings.cgroup)
  const pins = Pins.open(calls, settings.bpffs, log)
  const shared = new OpenSharedMaps(calls, pins, log)
  const flows = context.translated && new OpenFlowMaps(calls, pins, log)
  const attachment = new Attachment({ calls, cgroup, pins, network: networkCookie() })
  const known = knownByFamily<SocketPlan>()
  const notEnding = whyNotEnding()
  const applier = new SocketApplier({
    ...{ calls, attachment, known, sockets: settings.sockets, shared },
    ...{ hostCookie: networkCookie(), connectedUdp: notEnding === undefined },
    ...{ flows: flows?.maps, now: () => performance.now() },
  })
  const stale = new StaleSockets({
    ...{ noted: shared.maps.udpSockets, log },
    members: (family) => applier.tables(family).members,
    plan: (family) => known[family].value,
  })
  const lists = countedLists()
  const numbers = new Statistics({ maps: () => shared.maps, lists, meter: context.meter, log })
  const plans = () => Object.values(known).flatMap(({ value }) => (value ? [value] : []))
  const facts = { staysOverRestarts: pins !== undefined, connectedUdp: notEnding ?? 'translated' }
  log.info({ cgroup: cgroup.path, ...facts }, 'ebpf mode translates at the sockets of this cgroup')
  const lookers = lookersOf(context, { shared, noted: flows }, plans, () => lists(plans()))
  let isFirst = true
  const looks = endable()
  return {
    apply: async (plan) => {
      const done = await applier.apply(plan)
      if (isFirst) removeOrphans(attachment, cgroup.path, log)
      isFirst = false
      if (done.hasLost) await stale.sweep(done)
      return done
    },
    countTraffic: () => numbers.read(plans()),
    forget: () => forgetAll(known),
    run: (until, syncPeriodMs) =>
      looks.run(until, (signal) => {
        const guard = guardSockets({ attachment, applier, pins, context, syncPeriodMs }, signal)
        const looking = lookers.map((each) => lookUntil(signal, each, log))
        return Promise.all([guard, stale.run(signal), ...looking])
      }),
    close: async () => {
      // A look at memory that is mapped no more ends the process.
      await looks.end()
      for (const each of [attachment, applier, shared, flows, cgroup]) each?.close()
    },
  }
}

/** Work that runs until its signal, or until its end is asked for and waited for. */
function endable() {
  const ending = new AbortController()
  let running: Promise<unknown> | undefined
  return {
    run: async (until: AbortSignal, work: (signal: AbortSignal) => Promise<unknown>) => {
      await (running = work(AbortSignal.any([until, ending.signal])))
    },
    end: async () => {
      ending.abort()
      await running
    },
  }
}

/** Looks now and then at what programs have noted. */
interface Looker {
  /** What it looks at, for the log. */
  readonly subject: string
  readonly everyMs: number
  /** Whether it looks once more when the mode ends, however short ago it has looked. */
  readonly looksAtEnd: boolean
  look(): void
}

function lookersOf(
  { refused, translated }: ModeContext,
  { shared, noted }: { shared: OpenSharedMaps; noted: OpenFlowMaps | undefined },
  plans: () => readonly SocketPlan[],
  lists: () => CountedLists,
): readonly Looker[] {
  return [
    new OpenCounts({ map: () => shared.maps.open, plans }),
    ...(refused ? [new RefusedCalls({ map: shared.maps.refusals, lists, refused })] : []),
    ...(translated && noted ? [new SocketFlows({ noted, lists, translated })] : []),
  ]
}

/** It looks at intervals until the signal, and some once after the signal. */
export async function lookUntil(signal: AbortSignal, looker: Looker, log: Log): Promise<void> {
  for (let isOver = signal.aborted; !isOver;) {
    await pause(looker.everyMs, signal)
    isOver = signal.aborted
    if (isOver && !looker.looksAtEnd) return
    try {
      looker.look()
    } catch (error) {
      log.warn({ error: messageOf(error) }, `could not look at ${looker.subject}`)
    }
  }
}

/** Without CAP_SYS_ADMIN the kernel does not show links. Then programs of earlier runs stay. */
function removeOrphans(attachment: Attachment, cgroup: string, log: Log): void {
  try {
    const { detached, ofOthers } = attachment.detachOrphans()
    if (detached > 0)
      log.warn({ orphans: detached }, 'detached eBPF programs that an earlier run left')
    if (ofOthers > 0)
      log.warn(
        { programs: ofOthers, cgroup },
        'a proxy of another network namespace translates at the sockets of this cgroup, too; give each a cgroup of its own (ebpf.cgroup), or run `kube-proxy cleanup` in the other namespace',
      )
  } catch (error) {
    log.debug({ error: messageOf(error) }, 'could not look for eBPF programs of earlier runs')
  }
}
