/** Functions of the kernel that programs may call, with the numbers of `enum bpf_func_id`. */
export const helpers = {
  map_lookup_elem: 1,
  map_update_elem: 2,
  map_delete_elem: 3,
  ktime_get_ns: 5,
  get_prandom_u32: 7,
  get_current_pid_tgid: 14,
  skb_load_bytes: 26,
  get_socket_cookie: 46,
  sock_ops_cb_flags_set: 59,
  sk_storage_get: 107,
  sk_storage_delete: 108,
  get_netns_cookie: 122,
  ringbuf_reserve: 131,
  ringbuf_submit: 132,
  ringbuf_discard: 133,
  set_retval: 187,
} as const

export type Helper = keyof typeof helpers
