import { pause, aborted } from '../../../async.js'
import { bitsOf, formatIp, parseCidr, parseIp, type Cidr } from '../../../state/ip.js'
import { listAt, objectAt, textAt } from '../json.js'
import type { KubeObject } from '../object.js'
import type { PodLog } from '../pod-requests.js'

export interface PodState {
  /** At most one of each family, the primary one first. */
  readonly ips: readonly string[]
  readonly ready: boolean
}

/** Something that users should know about a pod: a warning among the Events. */
export interface PodEvent {
  readonly reason: string
  readonly message: string
}

export interface PodLife {
  /** Reports the state of the pod whenever it changes. */
  readonly report: (state: PodState) => void
  readonly tell: (event: PodEvent) => void
  /** Aborted when the pod is terminated: drain, then resolve. */
  readonly terminating: AbortSignal
  /** Aborted when the grace period is over or the pod was removed by force. */
  readonly killed: AbortSignal
  /** The Node of the pod, as it was when the pod started. */
  readonly node: KubeObject | undefined
}

/** Runs pods, in the place of a kubelet. */
export interface PodRuntime {
  /** Runs one pod; resolves when it has ended, and only then is its object removed. */
  run(pod: KubeObject, life: PodLife): Promise<void>
  /** What the pod has printed; absent where pods print nothing. */
  readonly log?: PodLog
}

const podCidrs = ['10.244.0.0/16', 'fd00:10:244::/64']
const readyAfterMs = 50
const endAfterMs = 50

const noHostIp = {
  reason: 'HostIPUnknown',
  message:
    'the pod uses the network of its node, and the Node has no InternalIP, so the pod has no address; give the Node one in status.addresses, and create the pod again',
}

/** Pods that only have addresses. This is enough if no packets are sent. */
export function fakeRuntime(): PodRuntime {
  const pools = podCidrs
    .flatMap((text) => parseCidr(text) ?? [])
    .map((cidr) => ({ cidr, used: new Set<bigint>() }))
  return {
    async run(pod, { report, tell, terminating, killed, node }) {
      const isOnHost = objectAt(pod, 'spec')['hostNetwork'] === true
      const held = (isOnHost ? [] : pools).map((pool) => ({
        ...pool,
        offset: take(pool.cidr, pool.used),
      }))
      const ips = isOnHost
        ? hostIps(node)
        : held.map(({ cidr, offset }) => formatIp(cidr.family, cidr.network + offset))
      if (ips.length === 0) tell(noHostIp)
      report({ ips, ready: false })
      await pause(readyAfterMs, terminating)
      if (!terminating.aborted) report({ ips, ready: true })
      await aborted(terminating)
      await pause(endAfterMs, killed)
      for (const { used, offset } of held) used.delete(offset)
    },
  }
}

/** The addresses of a node for its pods, at most one of each family, as kubelet chooses them. */
export function hostIps(node: KubeObject | undefined): readonly string[] {
  const addresses = listAt(node, 'status', 'addresses')
  const ips = ['InternalIP', 'ExternalIP'].flatMap((type) =>
    addresses.flatMap((each) =>
      textAt(each, 'type') === type ? (parseIp(textAt(each, 'address')) ?? []) : [],
    ),
  )
  const firsts = ips.filter(
    (ip, index) => ips.findIndex(({ family }) => family === ip.family) === index,
  )
  return firsts.map(({ text }) => text)
}

function take(cidr: Cidr, used: Set<bigint>): bigint {
  const last = (1n << BigInt(bitsOf(cidr.family) - cidr.prefix)) - 2n
  // .1 is the bridge in most networks, so pods begin at .2.
  let offset = 2n
  while (used.has(offset) && offset < last) offset++
  used.add(offset)
  return offset
}
