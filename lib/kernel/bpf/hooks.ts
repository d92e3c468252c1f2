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

/** `enum bpf_prog_type`: what may be read there, and which helpers may be called. */
export function programType(hook: Hook): number {
  const socketAddress = 18
  const socket = 9
  const operations = 13
  if (hook === 'sock_ops') return operations
  return hook === 'sock_release' ? socket : socketAddress
}
