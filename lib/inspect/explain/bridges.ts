import { filtersBridges } from '../../modes/userspace/datapath/source-keeper.js'
import type { Way } from './packet.js'

/** What this node knows of its bridges. */
interface BridgeFacts {
  readonly exists: boolean
  /** Rules see packets within a bridge. */
  readonly isFiltered: boolean
}

/** The ways with what this node's bridges do to them; unchanged where nothing is known of them. */
export async function onBridgesHere(
  ways: readonly Way[],
  look: () => Promise<BridgeFacts> = bridgesHere(),
): Promise<readonly Way[]> {
  if (ways.every(({ packet }) => packet.isHiddenOnBridge === undefined)) return ways
  const facts = await look().catch(() => undefined)
  return facts ? ways.map((way) => onBridge(way, facts)) : ways
}

function onBridge(way: Way, { exists, isFiltered }: BridgeFacts): Way {
  const { isHiddenOnBridge, ...packet } = way.packet
  const isHidden = exists && (isHiddenOnBridge === 'always' || isFiltered)
  if (isHiddenOnBridge === undefined || !isHidden) return { ...way, packet }
  return { ...way, packet: { ...packet, isHiddenOnBridge: 'always' } }
}

/** Looks once, and only when it is asked. */
export function bridgesHere(): () => Promise<BridgeFacts> {
  let facts: Promise<BridgeFacts> | undefined
  return () => (facts ??= lookAtBridges())
}

async function lookAtBridges(): Promise<BridgeFacts> {
  // Imported late: koffi does not load on every node.
  const { Links } = await import('../../kernel/links.js')
  const links = new Links()
  try {
    return { exists: (await links.kinds()).has('bridge'), isFiltered: filtersBridges() }
  } finally {
    links.close()
  }
}
