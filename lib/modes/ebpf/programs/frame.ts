/**
 * Where things are in the stack frame of a program; offsets are from its end. Everything that is
 * handed to a helper is written before, padding as well.
 */
export const frame = {
  /** Key of `frontends`, 20 bytes at most. */
  key: -24,
  /** Index into `services`. */
  slot: -28,
  /** Index into `backends`. */
  place: -32,
  affinityKey: -48,
  affinityValue: -80,
  /** Key of `members`: the service's id, and the endpoint that was chosen. */
  member: -104,
  /** Value of `udpSockets`, and below it the key. */
  udpSocket: -144,
  socketCookie: -152,
} as const
