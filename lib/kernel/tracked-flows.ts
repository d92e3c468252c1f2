import { flowHeader, flowMessage } from './conntrack-tuple.js'
import { openChannel } from './netlink/channel.js'
import { FlowMessage, type TrackedFlow } from './flow-message.js'
import { MessageWriter } from './netlink/message-writer.js'
import { flags, protocols } from './netlink/protocol.js'
import type { IpFamily } from '../state/ip.js'

/** Every TCP, UDP and SCTP connection of a family in this network namespace. Reads only. */
export async function listTrackedFlows(family: IpFamily): Promise<readonly TrackedFlow[]> {
  const flows: TrackedFlow[] = []
  await visitTrackedFlows(family, (flow) => flows.push(flow.tracked()))
  return flows
}

/** Visits the same connections one by one; `visit` gets a view that the next message overwrites. */
export async function visitTrackedFlows(
  family: IpFamily,
  visit: (flow: FlowMessage) => void,
): Promise<void> {
  const flow = new FlowMessage()
  const channel = openChannel(protocols.netfilter, { receiveBufferBytes: 1 << 20 })
  try {
    const request = new MessageWriter(64).message(flowMessage.get, flags.dump, (writer) =>
      writer.fixed(flowHeader(family)),
    )
    await channel.dump(request, {
      action: `list tracked ${family} connections`,
      parse: ({ payload }) => {
        if (flow.read(payload, 0, payload.length)) visit(flow)
        return undefined
      },
    })
  } finally {
    channel.close()
  }
}
