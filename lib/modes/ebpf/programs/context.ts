/** The fields of a call that programs read and write: `struct bpf_sock_addr`. */
export const call = {
  ip4: 4,
  ip6: 8,
  /** In network order, in the lower half. */
  port: 24,
  protocol: 36,
  socket: 64,
} as const

/** `struct bpf_sock` behind `socket`. */
export const socket = {
  sourceIp4: 24,
  sourceIp6: 28,
  /** In the machine's order; 0 before the socket has one. */
  sourcePort: 44,
  /** 0 while it is not connected. */
  peerPort: 48,
} as const

/** `struct bpf_sock` as the context of a socket that is closed. */
export const closed = { protocol: 12 } as const

/** `struct bpf_sock_ops`: an operation, and the state of its connection. */
export const operation = {
  kind: 0,
  stateBefore: 4,
  stateNow: 8,
  localIp4: 28,
  localIp6: 48,
  /** In the machine's order. */
  localPort: 68,
  /** In eighths of a microsecond. */
  roundTripTime: 80,
  wanted: 84,
  sentUpTo: 104,
  acknowledgedUpTo: 108,
  retransmits: 136,
  bytesReceived: 168,
  bytesAcknowledged: 176,
  socket: 184,
} as const
export const operations = { connecting: 3, stateChanged: 10, roundTrip: 12 } as const
/** The flags for operations that the kernel reports only if a program asks. */
export const wanted = { stateChanges: 4, roundTrips: 8 } as const

/** States of TCP. */
export const tcpStates = {
  established: 1,
  finWait2: 5,
  timeWait: 6,
  closed: 7,
  closeWait: 8,
  lastAck: 9,
  closing: 11,
} as const

/** The third word of `::ffff:0:0/96`, as a little-endian machine reads it. */
export const mappedWord = 0xffff0000

export const connectionRefused = 111

/** What a program returns: the call goes on, or fails. */
export const verdicts = { goOn: 1, fail: 0 } as const

export const nanosecondsPerSecond = 1_000_000_000
