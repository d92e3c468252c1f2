/** Hooks for programs of sockets, with their numbers in `enum bpf_attach_type`. */
export const hooks = {
  sock_ops: 3,
  connect4: 10,
  connect6: 11,
  sendmsg4: 14,
  sendmsg6: 15,
  recvmsg4: 19,
  recvmsg6: 20,
  getpeername4: 29,
  getpeername6: 30,
  sock_release: 34,
} as const

export type Hook = keyof typeof hooks

/** A `socket_filter` belongs to one socket. It has no hook: `setsockopt` attaches it. */
export type ProgramKind = Hook | 'socket_filter'

/**
 * The number in `enum bpf_prog_type`. It decides what a program may read and which helpers it
 * calls.
 */
export function programType(hook: ProgramKind): number {
  const socketAddress = 18
  const socket = 9
  const operations = 13
  const filter = 1
  if (hook === 'sock_ops') return operations
  if (hook === 'socket_filter') return filter
  return hook === 'sock_release' ? socket : socketAddress
}
