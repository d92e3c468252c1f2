/** Where programs of sockets hook in, with their numbers of `enum bpf_attach_type`. */
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

/** A filter of one socket, which `setsockopt` attaches, hooks in nowhere else. */
export type ProgramKind = Hook | 'socket_filter'

/** `enum bpf_prog_type`: what may be read there, and which helpers may be called. */
export function programType(hook: ProgramKind): number {
  const socketAddress = 18
  const socket = 9
  const operations = 13
  const filter = 1
  if (hook === 'sock_ops') return operations
  if (hook === 'socket_filter') return filter
  return hook === 'sock_release' ? socket : socketAddress
}
