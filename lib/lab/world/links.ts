import {
  addressOf,
  addresses,
  bridgeName,
  families,
  podsOfNode,
  podsOfNode2,
  ranges,
  uplinkName,
  type AddressPair,
  type Place,
} from './topology.js'
import { bitsOf, type IpFamily } from '../../state/ip.js'

export type NamespaceNames = Readonly<Record<Place, string>>

/**
 * Commands for one `ip -batch` that creates every link. Both ends are created inside their
 * namespaces, so the host's namespace never has an interface of a world.
 */
export function linkCommands(names: NamespaceNames): string[] {
  // If both ends of a veth have the same index in their namespaces, the kernel takes it for a link
  // without a peer and reports up to a second late that it is up. So each end gets its own index.
  let index = 100
  const veth = (name: string, at: Place, peer: string, peerAt: Place) =>
    `link add ${name} index ${index++} netns ${names[at]} type veth ` +
    `peer name ${peer} index ${index++} netns ${names[peerAt]}`
  return [
    `link add ${bridgeName} netns ${names.node} type bridge forward_delay 0 mcast_snooping 0`,
    // The bridge outside connects the nodes to one LAN, so ARP works as in a real one.
    `link add lan0 netns ${names.outside} type bridge forward_delay 0 mcast_snooping 0`,
    veth(uplinkName, 'node', 'to-node', 'outside'),
    veth(uplinkName, 'node-2', 'to-node-2', 'outside'),
    ...podsOfNode.map((pod) => veth(uplinkName, pod, `v${pod}`, 'node')),
    ...podsOfNode2.map((pod) => veth(uplinkName, pod, `v${pod}`, 'node-2')),
  ]
}

/**
 * Commands for `ip -n NAMESPACE -batch`, by place: addresses, routes and everything up. The rounds
 * run one after the other, because a bridge is up at once only if its ports are up.
 */
export function addressRounds(): readonly ReadonlyMap<Place, readonly string[]>[] {
  return [
    new Map([...podCommands(), ['node-2', node2Commands()]]),
    new Map([['node', nodeCommands()]]),
    new Map([['outside', outsideCommands()]]),
  ]
}

function podCommands(): ReadonlyMap<Place, readonly string[]> {
  // A pod reaches its neighbours through its node. Otherwise replies bypass the NAT of the proxy.
  const through = (gateway: (family: IpFamily) => string) => (pod: Place) =>
    [
      pod,
      [
        'link set lo up',
        `link set ${uplinkName} up`,
        ...families.flatMap((family) => [
          addAddress(addressOf(pod, family), bitsOf(family), uplinkName),
          `route add ${gateway(family)} dev ${uplinkName}`,
          `route add default via ${gateway(family)} dev ${uplinkName}`,
        ]),
      ],
    ] as const
  return new Map([
    ...podsOfNode.map(through((family) => addressOf('node', family, 2))),
    ...podsOfNode2.map(through((family) => addressOf('node-2', family, 1))),
  ])
}

function nodeCommands(): string[] {
  return [
    'link set lo up',
    `link set ${uplinkName} up`,
    // Hairpin lets a pod's packet come back through the port it left by (S24).
    ...podsOfNode.flatMap((pod) => [
      `link set v${pod} master ${bridgeName} up`,
      `link set v${pod} type bridge_slave hairpin on`,
    ]),
    `link set ${bridgeName} up`,
    ...families.flatMap((family) => [
      ...addAddresses(addresses.node.slice(0, 2), family, uplinkName),
      ...addAddresses(addresses.node.slice(2), family, bridgeName),
      route(ranges.pods2, family, addressOf('node-2', family)),
      `route add default via ${addressOf('outside', family)}`,
    ]),
  ]
}

function node2Commands(): string[] {
  return [
    'link set lo up',
    `link set ${uplinkName} up`,
    ...podsOfNode2.map((pod) => `link set v${pod} up`),
    ...families.flatMap((family) => [
      ...addAddresses(addresses['node-2'].slice(0, 1), family, uplinkName),
      // Every pod's link has the gateway address, because IPv6 answers only for addresses of the
      // same link.
      ...podsOfNode2.flatMap((pod) => [
        addAddress(addressOf('node-2', family, 1), bitsOf(family), `v${pod}`),
        `route add ${addressOf(pod, family)}/${bitsOf(family)} dev v${pod}`,
      ]),
      route(ranges.pods, family, addressOf('node', family)),
      ...serviceRoutes(family),
      `route add default via ${addressOf('outside', family)}`,
    ]),
  ]
}

function outsideCommands(): string[] {
  return [
    'link set lo up',
    'link set to-node master lan0 up',
    'link set to-node-2 master lan0 up',
    'link set lan0 up',
    ...families.flatMap((family) => [
      ...addAddresses(addresses.outside, family, 'lan0'),
      route(ranges.pods, family, addressOf('node', family)),
      route(ranges.pods2, family, addressOf('node-2', family)),
      ...serviceRoutes(family),
    ]),
  ]
}

/** The other places reach service addresses through the node under test. */
function serviceRoutes(family: IpFamily): string[] {
  const via = addressOf('node', family)
  return [
    route(ranges.services, family, via),
    route(ranges.loadBalancers, family, via),
    route(ranges.externalIps, family, via),
  ]
}

/** Adds addresses so that packets are sent from the first one. IPv6 prefers the newest. */
function addAddresses(pairs: readonly AddressPair[], family: IpFamily, device: string): string[] {
  const prefix = family === 'IPv4' ? 24 : 64
  const commands = pairs.map((pair) => addAddress(pair[family], prefix, device))
  return family === 'IPv4' ? commands : commands.reverse()
}

function addAddress(address: string, prefix: number, device: string): string {
  return `address add ${address}/${prefix} dev ${device}${address.includes(':') ? ' nodad' : ''}`
}

function route(range: AddressPair, family: IpFamily, via: string): string {
  return `route add ${range[family]} via ${via}`
}
