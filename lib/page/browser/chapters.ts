/** A chapter of the story of the modes. It compares two of them. */
interface Chapter {
  readonly title: string
  readonly words: string
  readonly modes: readonly [string, string]
}

export const chapters: readonly Chapter[] = [
  {
    title: 'Why a program in the middle',
    modes: ['userspace', 'iptables'],
    words:
      'The original kube-proxy took every connection itself: a few rules lead to its port, and it connects to a pod and passes the bytes on. ' +
      'That needs little of a kernel, is easy to understand, and the program knows what became of each connection. ' +
      'Look at the last hop on either side: on one a program chooses the pod, on the other a rule.',
  },
  {
    title: 'Why rules replaced it',
    modes: ['iptables', 'userspace'],
    words:
      'Rules do the same in the kernel. No byte passes a process, no socket is held, the pod sees the sender, and connections stay when kube-proxy ends. ' +
      'What the process costs, in one measurement of 2026-11-21: one stream had 36.8 Gbit/s through it and 51.1 without it, and 11,942 new connections a second against 15,144 (docs/benchmarks.md has the newest numbers). ' +
      'iptables mode was the default from Kubernetes 1.2 on, and userspace mode was removed in 1.26.',
  },
  {
    title: 'When it is better',
    modes: ['userspace', 'nftables'],
    words:
      'A rule sends a packet and never learns what became of it. The program sees that a pod does not answer and tries the next one, so the sender notices nothing; it counts every byte; and it runs where the kernel has neither IPVS nor nftables. ' +
      'The lesson “A pod goes dark” shows it.',
  },
  {
    title: 'A list becomes a table',
    modes: ['iptables', 'nftables'],
    words:
      'iptables compares the first packet with one rule after the other, also with those of other Services: with thousands of Services that takes time. ipvs and nftables look the address up in a table. ' +
      'Apply one more Service under Objects, and see which number grows.',
  },
  {
    title: 'And then no rules',
    modes: ['nftables', 'ebpf'],
    words:
      'For a program of this node ebpf mode replaces the address at connect(), before there is a packet. So no rule is met, and no packet is changed. ' +
      'Let somebody outside send: its connect() is on another machine, and the rules of nftables are back.',
  },
]
