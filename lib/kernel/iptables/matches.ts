import type { Match } from './rule.js'

/** `-m tcp --dport 80`; a port range is `[from, to]`. */
export function destinationPort(
  protocol: 'tcp' | 'udp' | 'sctp',
  port: number | readonly [from: number, to: number],
): Match {
  const text = typeof port === 'number' ? checkPort(port) : port.map(checkPort).join(':')
  return { name: protocol, args: ['--dport', text] }
}

type ConnectionState = 'NEW' | 'ESTABLISHED' | 'RELATED' | 'INVALID' | 'UNTRACKED' | 'SNAT' | 'DNAT'

export function connectionState(...states: ConnectionState[]): Match {
  return { name: 'conntrack', args: ['--ctstate', states.join(',')] }
}

export function notConnectionState(...states: ConnectionState[]): Match {
  return { name: 'conntrack', args: ['!', '--ctstate', states.join(',')] }
}

/** The packet mark under a mask equals the value. */
export function markIs(value: number, mask = value): Match {
  return { name: 'mark', args: ['--mark', `${hex(value)}/${hex(mask)}`] }
}

export function markIsNot(value: number, mask = value): Match {
  return { name: 'mark', args: ['!', '--mark', `${hex(value)}/${hex(mask)}`] }
}

/** The kernel counts in parts of 2^31, and iptables-save prints 11 digits of them. */
function asSaved(probability: number): string {
  return (Math.round(probability * 2 ** 31) / 2 ** 31).toFixed(11)
}

/** True for this share of all packets. */
export function randomly(probability: number): Match {
  if (!(probability > 0 && probability <= 1)) {
    throw new RangeError(`probability ${probability}: not between 0 and 1`)
  }
  return {
    name: 'statistic',
    args: ['--mode', 'random', '--probability', asSaved(probability)],
  }
}

/** True for the first of every so many packets. */
export function everyNth(every: number): Match {
  if (!Number.isInteger(every) || every < 1) {
    throw new RangeError(`every ${every}: not a number of packets`)
  }
  return { name: 'statistic', args: ['--mode', 'nth', '--every', String(every), '--packet', '0'] }
}

/** Destination (or source) address of this kind in the routing table. */
export function addressType(side: 'src' | 'dst', type: 'LOCAL' | 'UNICAST' | 'BROADCAST'): Match {
  return { name: 'addrtype', args: [`--${side}-type`, type] }
}

/** The source address was put on the list within the last seconds; older entries are removed. */
export function seenRecently(list: string, seconds: number): Match {
  const name = checkList(list)
  return {
    name: 'recent',
    args: ['--rcheck', '--seconds', String(seconds), '--reap', '--name', name],
  }
}

/** Puts the source address on the list. Always true. */
export function remember(list: string): Match {
  return { name: 'recent', args: ['--set', '--name', checkList(list)] }
}

/** Always true; counts the packet in an nfacct object, which must exist. */
export function accounted(object: string): Match {
  return { name: 'nfacct', args: ['--nfacct-name', checkList(object)] }
}

/** A classic BPF program over the packet from its network header on. */
export function bytecode(program: readonly (readonly [number, number, number, number])[]): Match {
  const code = program.map((instruction) => instruction.join(' '))
  return { name: 'bpf', args: ['--bytecode', [String(program.length), ...code].join(',')] }
}

/** `0x4000` */
export function hex(value: number): string {
  return `0x${(value >>> 0).toString(16)}`
}

function checkPort(port: number): string {
  if (Number.isInteger(port) && port >= 0 && port <= 65535) return String(port)
  throw new RangeError(`port ${port}: not between 0 and 65535`)
}

function checkList(name: string): string {
  if (/^[A-Za-z0-9_.-]{1,200}$/.test(name)) return name
  throw new RangeError(`name ${JSON.stringify(name)}: letters, digits, - _ . only`)
}
