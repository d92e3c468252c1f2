import { addressText } from '../../../kernel/addresses.js'
import type { ListedSocket } from '../../../kernel/listed-sockets.js'
import type { Routes } from '../../../kernel/routes.js'
import type { IpFamily } from '../../../state/ip.js'

/**
 * Ends what the kernel keeps for a minute of connections that were made from addresses of clients.
 * Without the rules it drops packets between the same client port and the same endpoint, because
 * this node should forward them, and a socket of this node waits for them.
 */
export async function forgetEndedSockets(
  family: IpFamily,
  routes: Pick<Routes, 'to'>,
): Promise<void> {
  const { ListedSockets, endedStates } = await import('../../../kernel/listed-sockets.js')
  const sockets = new ListedSockets('TCP')
  const foreign = new Map<string, boolean>()
  const isForeign = ({ own }: ListedSocket) => {
    const ip = addressText(family, own)
    const known = foreign.get(ip) ?? routes.to(ip)?.isLocal === false
    foreign.set(ip, known)
    return known
  }
  try {
    for (const socket of await sockets.list(family, endedStates)) {
      if (!socket.isOpen && isForeign(socket)) sockets.destroy(socket)
    }
  } finally {
    sockets.close()
  }
}
