import { flowsAnswer, type FlowsAnswer } from '../observe/flows/answer.js'
import { Flows } from '../observe/flows/flows.js'
import { sharedMeters } from '../observe/flows/shared-meters.js'
import { PodNames } from '../sources/pod-names.js'
import { refusalGroup, type ModeName } from '../config/config.js'
import { aborted } from '../async.js'
import type { CarriedConnection, ModeContext, RefusedCall, SocketFlow } from '../modes/mode.js'
import type { Exporter } from '../observe/otlp/exporter.js'
import type { FlowLine } from '../observe/flows/line.js'
import type { Metrics } from '../observe/metrics.js'
import type { Setup } from './setup.js'
import type { SyncListener } from '../sync/sync-round.js'

/** The source of connections in each mode. */
const tellers: Readonly<Record<ModeName, 'counts' | 'shows' | 'told'>> = {
  iptables: 'counts',
  nftables: 'counts',
  // Without connections translated at sockets: the kernel knows only their endpoint's address.
  ebpf: 'counts',
  // IPVS counts by itself.
  ipvs: 'shows',
  userspace: 'told',
  winuserspace: 'told',
}

export interface FlowCounting extends SyncListener {
  readonly flows: Flows
  readonly podNames: PodNames
  /** Answers a query of `/flows`. */
  readonly answer: (query: string) => FlowsAnswer
  /** The part of the mode's context that makes its numbers and those of the flows add up. */
  readonly forMode: Pick<ModeContext, 'meter' | 'carried' | 'refused' | 'translated'>
  run(signal: AbortSignal): Promise<void>
  /** Saves the last numbers, once the mode has ended. */
  end(): Promise<void>
}

export async function flowCounting(setup: Setup, metrics: Metrics): Promise<FlowCounting> {
  const { config, mode, deps } = setup
  const podNames = new PodNames()
  const kernel = tellers[mode]
  // Of a mode that carries connections itself, all numbers are told to the flows.
  const [own, ofMode] = kernel === 'told' ? [metrics, metrics] : sharedMeters(metrics)
  const flows = new Flows({
    kernel,
    // IPVS changes the destination without the NAT of the kernel.
    onlyTranslated: mode !== 'ipvs',
    stateFile: config.flows.stateFile,
    refusalGroup: mode === 'winuserspace' ? undefined : refusalGroup,
    meter: own,
    log: deps.log,
    podAt: (ip) => podNames.at(ip),
  })
  const carried = (connections: readonly CarriedConnection[], leftOut: number) =>
    flows.told(connections.map(lineOf), leftOut)
  const refused = (calls: readonly RefusedCall[], leftOut: number) =>
    flows.told(calls.map(refusalOf), leftOut)
  const translated = (all: readonly SocketFlow[], leftOut: number) =>
    flows.told(all.map(translationOf), leftOut)
  const exporter = await exporterOf(setup, metrics, flows)
  const firstSync = new AbortController()
  return {
    flows,
    podNames,
    started: (update) => flows.started(update),
    // A reason is given, because the default one is an error, which costs a stack trace.
    synced: () => firstSync.abort('synced'),
    run: async (signal) => {
      await Promise.all([flows.run(signal), exporter?.run(aborted(firstSync.signal), signal)])
      await exporter?.end()
    },
    answer: (query) => flowsAnswer(flows.lines, query),
    end: () => flows.end(),
    forMode:
      kernel === 'told'
        ? { meter: flows.meterOf(ofMode), refused, translated, carried }
        : { meter: ofMode, refused, translated },
  }
}

function refusalOf({ service, protocol, address, process }: RefusedCall): FlowLine {
  return {
    ...{ at: Date.now(), event: 'ended', verdict: 'no-endpoints', why: `process ${process}` },
    ...{ protocol, client: '', service, address, endpoint: '' },
  }
}

function translationOf(flow: SocketFlow): FlowLine {
  if (flow.event === 'client') {
    const { process, ...places } = flow
    const begin = { event: 'opened', verdict: 'forwarded', why: `process ${process}` } as const
    return { at: Date.now(), protocol: 'UDP', ...places, ...begin }
  }
  const { event, durationMs, bytesToEndpoint, bytesToClient, ...places } = flow
  const common = { at: Date.now(), protocol: 'TCP', ...places } as const
  if (event === 'opened') return { ...common, event, verdict: 'forwarded', why: '' }
  const atEnd = { ...common, event: 'ended', durationMs, bytesToEndpoint, bytesToClient } as const
  if (event === 'ended') return { ...atEnd, verdict: 'forwarded', why: '' }
  return { ...atEnd, verdict: 'refused', why: 'not connected' }
}

/** The exporter for `flows.otlp`. It is loaded only then. */
async function exporterOf(
  { config, deps, mode, nodeName }: Setup,
  metrics: Metrics,
  { lines }: Flows,
): Promise<Exporter | undefined> {
  const { endpoint } = config.flows.otlp
  if (endpoint === '') return undefined
  const otlp = await import('../observe/otlp/exporter.js')
  const version = / v(\S+)/.exec(deps.version)?.[1] ?? deps.version
  const sender = { node: nodeName, mode, version }
  return new otlp.Exporter({ endpoint, sender, lines, metrics, log: deps.log })
}

function lineOf(connection: CarriedConnection): FlowLine {
  const { service, protocol, client, endpoint, bytesToEndpoint, bytesToClient } = connection
  const { end, durationMs } = connection
  const isReached = endpoint !== ''
  const verdict = isReached ? 'forwarded' : end === 'no endpoint' ? 'no-endpoints' : 'refused'
  const why = end === 'ok' || verdict === 'no-endpoints' ? '' : end
  return {
    ...{ service, protocol, client, endpoint, bytesToEndpoint, bytesToClient },
    ...{ at: Date.now(), event: 'ended', verdict, why, address: '' },
    durationMs: Math.round(durationMs),
  }
}
